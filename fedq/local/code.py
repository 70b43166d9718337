"""Components of the user's own, loaded from a folder into this process."""

from pathlib import Path

from fedcore import bundles
from fedcore.errors import ExtensionError, UserCodeError
from fedcore.spec.components import FAMILIES
from fedcore.user_traceback import user_traceback


def load_code(folder: Path) -> str:
    """Make the components of `folder` known to this process, and return the digest of its bundle.

    Raises ExtensionError, and UserCodeError where a module of it fails.
    """
    digest = bundles.digest(bundles.pack(folder))
    try:
        found = bundles.load(folder, {name: family.base for name, family in FAMILIES.items()})
    except ExtensionError:
        raise
    except Exception as error:
        raise UserCodeError(str(user_traceback(error, folder))) from error
    for name, members in found.items():
        for member in members.values():
            FAMILIES[name].note_class(member)
    return digest
