"""`fedq slurm`, with a real Slurm on the loopback."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedcore.platform import local_credentials
from fedcore.settings import settings
from fedq.client import Client
from fedq.local.folder import ExperimentFolder
from tests.builders.specifications import SYNTHETIC, merged
from tests.fedq.local.test_experiment import bits, call, committed, spec_file
from tests.support.commands import started, url_of
from tests.support.polling import eventually
from tests.support.slurm import GRACE_S, Slurm, cluster, missing

pytest.importorskip("submitit", reason="submitit is not installed (fedq[slurm])")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())} (slurm-wlm, munge)"),
]

JOB_S = 300.0
LONG = merged(SYNTHETIC, {"rounds": 100_000})
SLOW = merged(SYNTHETIC, {"rounds": 600, "local": {"epochs": None, "steps": 2_000}})
"""Ten seconds of work: Slurm preempts a job sooner."""


@pytest.fixture(scope="module")
def running() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, cluster(Path(folder)) as slurm:
        yield slurm


@pytest.fixture
def slurm(running: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Slurm]:
    """The cluster without jobs, for commands of this process."""
    for name, value in (running.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FEDQ_SLICE_SECONDS", "0.05")
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield running
    subprocess.run(["scancel", "--full", "--user", str(os.getuid())], check=True)
    eventually(lambda: not running.jobs(), JOB_S)
    settings.cache_clear()


def submitted(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The id of the job array."""
    assert call(*arguments) == 0
    return capsys.readouterr().out.strip()


def warned(job: str) -> None:
    """Send what Slurm sends before the time limit."""
    subprocess.run(["scancel", "--signal=USR2", job], check=True)


def test_the_arms_run_as_an_array(slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = merged(SYNTHETIC, {"sweep": {"algorithm": [{"kind": "fedavg"}, {"kind": "scaffold"}]}})
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    job = submitted(capsys, "slurm", "run", file, "--output", out, "--time", 10, "--cpus", 1)
    assert {line.split()[0] for line in slurm.jobs()} <= {f"{job}_0", f"{job}_1"}
    eventually(lambda: not slurm.jobs(), JOB_S)
    folder = ExperimentFolder(out)
    assert [len(folder.run(key).rows()) for key in folder.run_keys()] == [4, 4], logs_of(out)
    assert call("run", file, "--output", out) == 0
    assert "scaffold" in capsys.readouterr().out
    assert call("slurm", "run", file, "--output", out, "--partition", "nowhere") == 3
    assert capsys.readouterr().err.count("invalid partition") == 1


@pytest.mark.nightly
def test_a_job_at_its_time_limit_is_requeued_and_continues(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    job = submitted(
        capsys, "slurm", "run", spec_file(tmp_path, LONG), "--output", out, "--time", 10, "--cpus", 1
    )
    eventually(lambda: committed(out) > 0, JOB_S)
    warned(job)
    eventually(lambda: "Restarts=1" in shown(job), JOB_S)
    eventually(lambda: "JobState=PENDING" in shown(job), JOB_S)
    (key,) = ExperimentFolder(out).run_keys()
    files = ExperimentFolder(out).run(key)
    before = files.rows()
    start_again(job)
    eventually(lambda: len(files.rows()) > len(before), JOB_S)
    kept = [row["committed_at"] for row in files.rows()[: len(before)]]
    assert kept == [row["committed_at"] for row in before], "a clean end loses no round"


@pytest.mark.nightly
def test_a_worker_leaves_before_the_time_limit_and_comes_back_after_a_preemption(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "service"
    place.mkdir()
    with started(place, "workers.embedded.supervisor", "--port=0", "--workers=0"):
        url = url_of(place)
        monkeypatch.setenv("FEDQ_HOME", str(place / ".fedq"))
        settings.cache_clear()
        document = merged(LONG, {"execution": {"queue": "nightly"}})
        with Client(url, local_credentials.load(place / ".fedq")) as client:
            id = client.submit(document).id
            job = submitted(
                capsys, "workers", "start", "--queue", "nightly", "--time", 10, "--logs", tmp_path / "logs"
            )
            eventually(lambda: client.experiment(id).progress.rounds_done > 0, JOB_S)
            warned(job)
            eventually(lambda: not slurm.jobs(), JOB_S)
            (run,) = client.runs(id)
            assert (run.status, run.attempts, run.error) == ("queued", 0, None)
            assert shown(job) == "JobState=COMPLETED Restarts=0", logs_of(tmp_path, "logs")
            before = client.run(run.id).rounds_done
            job = submitted(
                capsys,
                *("workers", "start", "--queue", "nightly", "--time", 10, "--partition", "low"),
                *("--logs", tmp_path / "preempted"),
            )
            eventually(lambda: client.run(run.id).rounds_done > before, JOB_S)
            with preempting(job):
                (run,) = client.runs(id)
                assert (run.status, run.attempts, run.error) == ("queued", 0, None)
                before = run.rounds_done
            start_again(job)
            eventually(lambda: client.run(run.id).rounds_done > before, JOB_S)
            subprocess.run(["scancel", job], check=True)
            eventually(lambda: not slurm.jobs(), JOB_S)
            assert client.run(run.id).status == "queued"
            assert shown(job) == "JobState=CANCELLED Restarts=1", logs_of(tmp_path, "preempted")


@pytest.mark.nightly
def test_a_part_that_is_preempted_is_requeued_and_ends_in_the_same_bits(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = spec_file(tmp_path, SLOW), tmp_path / "out"
    job = submitted(
        capsys, "slurm", "run", file, "--output", out, "--time", 10, "--cpus", 1, "--partition", "low"
    )
    eventually(lambda: committed(out) > 0, JOB_S)
    with preempting(job):
        (rows, _) = bits(out)["0-0"]
        assert 0 < len(rows) < SLOW["rounds"], "it was over before it was preempted"
    start_again(job)
    eventually(lambda: not slurm.jobs(), JOB_S)
    assert call("run", file, "--output", tmp_path / "whole", "--processes", 1) == 0
    assert bits(out) == bits(tmp_path / "whole"), logs_of(out)
    assert len(bits(out)["0-0"][0]) == SLOW["rounds"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "signal", [[], ["--signal=TERM"], ["--signal=INT"]], ids=["cancelled", "TERM", "INT"]
)
def test_a_part_that_its_user_ends_is_not_requeued(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str], signal: list[str]
) -> None:
    out = tmp_path / "out"
    job = submitted(
        capsys,
        *("slurm", "run", spec_file(tmp_path, LONG), "--output", out, "--time", 10, "--cpus", 1),
        *("--partition", "low"),
    )
    eventually(lambda: committed(out) > 0, JOB_S)
    subprocess.run(["scancel", *signal, job], check=True)
    eventually(lambda: not slurm.jobs(), JOB_S)
    assert shown(job) in ("JobState=CANCELLED Restarts=0", "JobState=FAILED Restarts=0"), logs_of(out)
    assert committed(out) > 0


@contextmanager
def preempting(job: str) -> Iterator[None]:
    """A job that needs the whole node and comes first takes the place of `job`, which waits then."""
    first = ["sbatch", "--parsable", "--partition=high", "--exclusive", "--output=/dev/null"]
    other = subprocess.run([*first, "--wrap=sleep 600"], check=True, capture_output=True, text=True)
    # Long before the end of its grace.
    eventually(lambda: shown(job) == "JobState=PENDING Restarts=1", GRACE_S / 2)
    yield
    subprocess.run(["scancel", other.stdout.strip()], check=True)


def start_again(job: str) -> None:
    """Start a requeued job in some seconds, where Slurm would let it wait for two minutes.

    In the second in which it was requeued it could not start: credentials of that second are revoked.
    """
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], check=True)


def shown(job: str) -> str:
    told = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
    return " ".join(re.findall(r"(?:JobState|Restarts)=\w+", told.stdout))


def logs_of(folder: Path, name: str = "slurm") -> str:
    return "\n".join(file.read_text() for file in (folder / name).glob("*.err"))
