"""From a user's file to checked samples."""

from typing import BinaryIO

from fedcore.errors import UploadError
from fedcore.uploads.canonical import Samples
from fedcore.uploads.checks import checked
from fedcore.uploads.limits import Limits

_MAGIC_BYTES = 4


def read(file: BinaryIO, limits: Limits) -> Samples:
    """The samples of an NPZ or Parquet file, told apart by their first bytes; raises UploadError."""
    file.seek(0)
    start = file.read(_MAGIC_BYTES)
    file.seek(0)
    # Imported here: pyarrow and NumPy take long to load, and the other format needs less.
    if start.startswith(b"PK"):
        from fedcore.uploads.npz import read_npz

        return checked(read_npz(file, limits))
    if start == b"PAR1":
        from fedcore.uploads.parquet import read_parquet

        return checked(read_parquet(file, limits))
    given = f"begins with {start!r}" if start else "is empty"
    raise UploadError("", f"the file {given}; it must be NPZ (np.savez) or Parquet")
