"""Formats are told apart by their content."""

import pytest

from fedcore.errors import UploadError
from tests.platform.uploads.files import take


@pytest.mark.parametrize("data", [b"", b"features,label\n1,0\n", b"\x93NUMPY\x01\x00", b"\x80\x04K\x00."])
def test_another_format_is_refused_with_those_that_are_read(data: bytes) -> None:
    with pytest.raises(UploadError, match=r"it must be NPZ \(np.savez\) or Parquet") as refused:
        take(data)
    assert refused.value.name == ""
