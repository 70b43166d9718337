"""How large an uploaded data set may be; without NumPy, which the API process does not load."""

from typing import NamedTuple, Self

from fedcore.settings import Settings


class UploadLimits(NamedTuple):
    """Bounds that hold for every upload, whatever its format."""

    bytes: int
    """Of the file, and of the arrays in it once unpacked."""
    samples: int
    features: int
    """Numbers per sample."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those that the operator set."""
        return cls(settings.upload_max_bytes, settings.upload_max_samples, settings.upload_max_features)
