"""A process that cannot work ends with a line for each flaw, and without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import ExtensionError, SettingsError
from fedcore.platform.starting import exit_on_errors
from tests.support.s3 import S3, Fault

PROCESSES = {
    "api": ("api", "--factory", "api.app:create_app", "--port", "0"),
    "worker": ("workers.worker",),
    "reconciler": ("workers.reconciler",),
    "supervisor": ("workers.embedded.supervisor", "--port", "0"),
    "backup": ("fedq.cli", "backup", "copy"),
    "restore": ("fedq.cli", "restore", "copy"),
}
FLAWS = {
    "package": "FEDQ_STORAGE_URL needs s3fs: pip install 'fedq[s3]'",
    "bucket": "FEDQ_STORAGE_URL: there is no bucket 'typo'; create it, or correct the URL",
    "archive": "FEDQ_ARCHIVE_URL: there is no bucket 'typo'; create it, or correct the URL",
    "credentials": (
        "FEDQ_STORAGE_URL: access to the bucket {} is refused: PermissionError: Forbidden; check the"
        " credentials and what they allow"
    ),
}
BY_DAY = {("api", "package"), ("worker", "bucket"), ("supervisor", "credentials")}
CASES = [
    pytest.param(process, flaw, marks=() if (process, flaw) in BY_DAY else pytest.mark.nightly)
    for process in PROCESSES
    for flaw in FLAWS
    if flaw != "archive" or process in {"reconciler", "supervisor"}
]


def _ended(process: str, folder: Path, own: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *PROCESSES[process]],
        cwd=folder,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("flaw", [SettingsError("FEDQ_A: no\nFEDQ_B: no"), ExtensionError("theirs 0.3: no")])
def test_each_flaw_is_a_line(flaw: Exception) -> None:
    with pytest.raises(SystemExit) as ended, exit_on_errors():
        raise flaw
    assert ended.value.code == "\n".join(f"fedq: {line}" for line in str(flaw).split("\n"))


@pytest.mark.slow
@pytest.mark.parametrize("process", ["api", "worker", "reconciler"])
def test_every_process_names_a_url_that_no_broker_has(
    sqlite_template: Path, tmp_path: Path, process: str
) -> None:
    (tmp_path / "fedq.db").write_bytes(sqlite_template.read_bytes())
    done = _ended(
        process, tmp_path, {"FEDQ_HOME": str(tmp_path), "FEDQ_BROKER_URL": "foo://user:secret@host"}
    )
    assert done.returncode not in (0, None)
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedq: FEDQ_BROKER_URL: foo is no kind of broker")
    assert "secret" not in line


@pytest.mark.slow
@pytest.mark.parametrize("process", ["worker", "supervisor"])
def test_every_process_names_a_storage_folder_that_cannot_be_made(
    sqlite_template: Path, tmp_path: Path, process: str
) -> None:
    (tmp_path / "fedq.db").write_bytes(sqlite_template.read_bytes())
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "storage"
    done = _ended(process, tmp_path, {"FEDQ_HOME": str(tmp_path), "FEDQ_STORAGE_URL": str(folder)})
    assert done.returncode not in (0, None)
    assert f"fedq: FEDQ_STORAGE_URL: the folder {folder} cannot be made: Not a directory" in " ".join(
        done.stderr.split()
    )


@pytest.mark.slow
def test_a_worker_names_a_device_that_it_cannot_use_and_ends(sqlite_template: Path, tmp_path: Path) -> None:
    (tmp_path / "fedq.db").write_bytes(sqlite_template.read_bytes())
    (tmp_path / "broker").mkdir()
    own = {
        "FEDQ_HOME": str(tmp_path),
        "FEDQ_BROKER_URL": f"filesystem://{tmp_path / 'broker'}",
        "FEDQ_DEVICE": "cuda:99",
    }
    done = _ended("worker", tmp_path, own)
    assert done.returncode == 1
    # Celery may start a second child before the first has ended the worker.
    errors = [line for line in done.stderr.splitlines() if '"level": "error"' in line]
    assert errors
    assert all("FEDQ_DEVICE: cuda:99 cannot be used: " in line for line in errors)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("process", "flaw"), CASES)
def test_every_process_names_what_is_wrong_with_its_object_store(
    s3: S3, tmp_path: Path, process: str, flaw: str
) -> None:
    bucket, before = s3.bucket(), s3.buckets()
    own = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "packages"), *sys.path]),
        "FEDQ_HOME": str(tmp_path / "home"),
        "FEDQ_STORAGE_URL": "s3://typo/fedq" if flaw == "bucket" else f"s3://{bucket}/fedq",
        "FEDQ_ARCHIVE_URL": "s3://typo" if flaw == "archive" else f"s3://{bucket}/archive",
        "FEDQ_RETENTION_DAYS": "90",
    }
    (tmp_path / "packages").mkdir()
    if flaw == "package":
        (tmp_path / "packages" / "s3fs.py").write_text("raise ModuleNotFoundError(name=__name__)\n")
    s3.fail(*[Fault.REFUSED] if flaw == "credentials" else [])
    done = _ended(process, tmp_path, own)
    s3.fail()
    assert done.returncode not in (0, None)
    lines = [" ".join(part.split()) for part in done.stderr.split("fedq: ") if part.strip()]
    assert lines == [FLAWS[flaw].format(repr(bucket))]
    assert s3.buckets() == before
