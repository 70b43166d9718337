"""Start of a process of the service, of which each flaw in its settings, packages or database is one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedcore.errors import ExtensionError, SchemaError, SettingsError
from fedcore.visible_text import visible


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """End the process with the message where the block finds that it cannot work."""
    try:
        yield
    except (ExtensionError, SchemaError, SettingsError) as error:
        sys.exit("\n".join(f"fedq: {visible(flaw)}" for flaw in str(error).splitlines()))
