"""Which FedQ this is."""

from functools import cache
from importlib.metadata import version


@cache
def release() -> str:
    """The version that is installed. To find it out takes longer than to answer a request."""
    return version("fedq")
