"""`python -m fedq.download`."""

from pathlib import Path

import pytest

from fedcore.settings import settings
from fedq import download
from tests.data.image_files import write_mnist


def test_a_download_leaves_alone_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnist(tmp_path)
    monkeypatch.setenv("FEDQ_DATA_DIR", str(tmp_path))
    settings.cache_clear()
    try:
        download.main(["mnist"])
    finally:
        settings.cache_clear()
    assert capsys.readouterr().out == f"mnist is in {tmp_path}\n"
