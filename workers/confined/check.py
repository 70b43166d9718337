"""Functions of an allow-list, called in the confinement of a bundle: checks before it is run."""

from typing import Any

from fedcore.settings import Settings
from workers.confined.answers import raise_failure
from workers.confined.protocol import ProtocolError
from workers.confined.sandbox import Sandbox

CHECK_S = 10.0
"""Time for a check, without loading the libraries."""


def call(archive: bytes, name: str, document: Any, settings: Settings, timeout_s: float = CHECK_S) -> Any:
    """Call the function `name` of `workers.confined.computing.CALLS` with the components of a bundle
    and the JSON value `document`; returns its JSON value.

    Raises ExtensionError if `archive` is no bundle, SpecificationError where the function does,
    UserCodeError for any other error in the bundle, and ConfinementError where there can be no
    sandbox.
    """
    with Sandbox(archive, settings) as sandbox:
        session = sandbox.session()
        try:
            answer = session.request({"do": "call", "name": name, "document": document}, timeout_s).fields
        finally:
            session.close()
    raise_failure(answer)
    if "value" not in answer:
        raise ProtocolError("the computing process sent an answer of another form: it has no value")
    return answer["value"]
