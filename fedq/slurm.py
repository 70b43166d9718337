"""Jobs of a Slurm cluster, submitted by submitit: parts of an experiment without a service, and workers
of a service for the length of an allocation.

Slurm sends SIGUSR2 to a job before its time limit: a part is then requeued, and a worker ends. Both are
requeued when Slurm preempts them and grants a time to end in (GraceTime), for which it sends SIGTERM.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError
from fedcore.lazy import LazyModule, submitit
from fedcore.lazy import submitit_helpers as helpers
from fedcore.platform.status import Status
from fedcore.settings import settings
from fedq.local.code import load_code
from fedq.local.folder import ExperimentFolder
from fedq.results.presentation import counted

if TYPE_CHECKING:
    from fedq.local import experiment
else:
    experiment = LazyModule("fedq.local.experiment")

ENDING_S = 30
"""Between the end of the grace period and the time limit."""
NEVER = "N/A"
"""Time of a preemption that there was not, in the words of `squeue`."""
ANSWER_S = 60.0
"""Longest wait for an answer of Slurm."""
MAX_TIMEOUTS = 1_000
"""Times that a part may be requeued at its time limit."""


class SlurmError(FedcoreError):
    """Jobs cannot be submitted; the message says why."""


@dataclass(frozen=True)
class PartTask:
    """A part of an experiment in `folder`."""

    folder: Path
    part: tuple[int, int]
    code: Path | None

    def __call__(self) -> None:
        """Compute the part; fails if one of its runs does."""
        if self.code is not None:
            load_code(self.code)
        # The processes of the step receive the signal, too.
        local = experiment.LocalExperiment(
            ExperimentFolder(self.folder), experiment.ArrayPart(*self.part), code=self.code
        )
        try:
            local.run()
        except KeyboardInterrupt:
            _requeue_if_preempted()
            raise
        failed = [f"{run.arm}-{run.seed}: {run.error}" for run in local.runs if run.status is Status.FAILED]
        if failed:
            raise SlurmError(f"{counted(len(failed), 'run')} failed: {'; '.join(failed)}")

    def checkpoint(self) -> helpers.DelayedSubmission:
        """Requeue the part at its time limit: it continues where it was."""
        return helpers.DelayedSubmission(self)


@dataclass(frozen=True)
class WorkerTask:
    """A worker of the service at FEDQ_DATABASE_URL."""

    queues: tuple[str, ...] = ()
    """Queues that it serves; empty: the queues of FEDQ_QUEUES."""

    def __call__(self) -> None:
        """Serve until the time limit is near or the job is preempted; then finish the present round and
        hand the run back.
        """
        own = {"FEDQ_QUEUES": ",".join(self.queues)} if self.queues else {}
        worker = subprocess.Popen(
            [sys.executable, "-m", "workers.worker"],
            env=os.environ | own,
            # Slurm signals every process of the step; the worker ends on SIGTERM alone.
            preexec_fn=_ignore_warning,  # noqa: PLW1509 - it makes one system call
        )
        for one in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(one, lambda *_: worker.terminate())
        code = worker.wait()
        _requeue_if_preempted()
        if code:
            raise SlurmError(f"the worker ended with code {code}")


@dataclass(frozen=True)
class JobOptions:
    """Resources and options of the jobs."""

    name: str
    minutes: int
    partition: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    """Further options of sbatch, by name."""


def submit(tasks: Sequence[Callable[[], None]], logs: Path, options: JobOptions) -> str:
    """Submit an array of jobs and return its id; raises SlurmError."""
    asked: dict[str, Any] = {
        "job_name": options.name,
        "time": options.minutes,
        "partition": options.partition,
        "cpus_per_task": options.cpus,
        "gpus_per_node": options.gpus,
        "signal_delay_s": round(settings().grace_seconds) + ENDING_S,
        "array_parallelism": len(tasks),
        "additional_parameters": dict(options.others),
    }
    try:
        executor = submitit.SlurmExecutor(folder=logs, max_num_timeout=MAX_TIMEOUTS)
        executor.update_parameters(**{name: value for name, value in asked.items() if value is not None})
        # submitit prints what sbatch says, which its error says, too.
        with redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(task) for task in tasks]
    except RuntimeError as error:  # also the errors of submitit
        raise SlurmError(f"Slurm does not take the jobs: {error}") from error
    return str(jobs[0].job_id).partition("_")[0]


def _requeue_if_preempted() -> None:
    """Requeue this job if Slurm is preempting it: within the grace time, Slurm takes the end of a job for
    its own. Raises SlurmError.

    A job that its user cancels or signals is not requeued.
    """
    job = submitit.JobEnvironment().job_id
    asked = _answer_of("squeue", "--noheader", f"--jobs={job}", "--Format=State,PreemptTime")
    state, preempted, *_ = [*asked.split(), NEVER, NEVER]
    if state == "RUNNING" and preempted != NEVER:
        _answer_of("scontrol", "requeue", job)


def _answer_of(*command: str) -> str:
    """Output of a command of Slurm; raises SlurmError."""
    try:
        ended = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        raise SlurmError(f"{' '.join(command)}: {str(told).strip()}") from error
    return ended.stdout


def _ignore_warning() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
