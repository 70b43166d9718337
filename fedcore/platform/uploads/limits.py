"""How large an uploaded data set may be; without NumPy, which the API process does not load."""

from typing import NamedTuple


class UploadLimits(NamedTuple):
    """Bounds that hold for every upload, whatever its format."""

    bytes: int
    """Maximum size of the file, and of the arrays in it once unpacked, in bytes."""
    samples: int = 10_000_000
    features: int = 1_000_000
    """Numbers per sample."""
