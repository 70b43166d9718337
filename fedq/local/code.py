"""Components of the user's own, loaded from a folder into this process."""

from pathlib import Path
from typing import Any

from fedcore import bundles
from fedcore.errors import ExtensionError, UserCodeError
from fedcore.spec.components import FAMILIES
from fedcore.user_traceback import user_traceback


def load_code(folder: Path) -> dict[str, Any]:
    """Make the components of `folder` known to this process, and return the field `code` of specifications
    that use them: the digest of the bundle, and its kinds, by which other processes read them.

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
    return {"digest": digest, "components": {name: sorted(members) for name, members in found.items()}}
