"""Start of a process of the service, of which each flaw in its settings or packages is one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedcore.errors import ExtensionError, SettingsError


@contextmanager
def starting() -> Iterator[None]:
    """End the process with the message where the block finds that it cannot work."""
    try:
        yield
    except (ExtensionError, SettingsError) as error:
        sys.exit("\n".join(f"fedq: {flaw}" for flaw in str(error).splitlines()))
