"""Questions of the service to a bundle before it is run, in the confinement of the bundle."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedcore.errors import BusyError, UserCodeError
from fedcore.settings import Settings
from workers.confined.answers import (
    CheckedBundle,
    PreparedSpecification,
    checked_bundle,
    prepared_specification,
)
from workers.confined.sandbox import Sandbox

T = TypeVar("T")
CHECK_S = 30.0
"""Time for the checks of a bundle, of which none is started after a few seconds."""
PREPARE_S = 10.0
"""Time for validating a specification, without loading the libraries."""


def check_bundle(archive: bytes, settings: Settings) -> CheckedBundle:
    """The components of a bundle, and what is wrong with them.

    Raises ExtensionError if `archive` is no bundle, UserCodeError, SpecificationError and
    DataUnavailableError for errors in it, BusyError, and ConfinementError where there can be no sandbox.
    """
    return _call(archive, "check", None, settings, CHECK_S, checked_bundle)


def prepare(archive: bytes, document: Any, settings: Settings) -> PreparedSpecification:
    """Validate a specification by the bundle that it uses; raises as `check_bundle`."""
    return _call(archive, "prepare", document, settings, PREPARE_S, prepared_specification)


def _call(
    archive: bytes,
    name: str,
    document: Any,
    settings: Settings,
    timeout_s: float,
    parse: Callable[[dict[str, Any]], T],
) -> T:
    with Sandbox(archive, settings) as sandbox:
        session = sandbox.session()
        try:
            fields = session.request({"do": "call", "name": name, "document": document}, timeout_s).fields
        except MemoryError as error:
            raise BusyError(f"{error}; try again") from error
        finally:
            session.close()
    try:
        return parse(fields)
    except MemoryError as error:
        raise UserCodeError(
            f"memory ran out ({error}): a bundle may take {settings.code_memory_bytes} bytes"
        ) from None
