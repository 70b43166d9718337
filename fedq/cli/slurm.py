"""`fedq slurm run` and `workers start`: jobs of a Slurm cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedq.cli.experiments import Assignments, Code, PresetName, SpecificationFile
from fedq.cli.lazy import slurm
from fedq.cli.local import Output, prepared
from fedq.cli.terminal import AsJson, ExitCode, complain, tell

LOGS = "slurm"
"""Folder of the jobs' logs, in that of an experiment or where workers are started."""

Minutes = Annotated[
    int, typer.Option("--time", metavar="MIN", min=1, help="Time limit of each job in minutes.")
]
Partition = Annotated[str | None, typer.Option(help="Partition of the cluster (default: its own).")]
Cpus = Annotated[int | None, typer.Option(min=1, help="Cores of each job.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of each job.")]
Others = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch",
        metavar="NAME=VALUE",
        help="Further option of sbatch, e.g. --sbatch account=lab; may be repeated.",
    ),
]
Parts = Annotated[
    int | None, typer.Option(min=1, help="Number of jobs that share the runs (default: one per arm).")
]
Count = Annotated[int, typer.Option("--workers", min=1, help="Number of jobs, with one worker each.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="QUEUE", help="Queue to serve (default: FEDQ_QUEUES); may be repeated."),
]
Logs = Annotated[Path, typer.Option("--logs", metavar="DIR", help="Folder of the jobs' logs.")]


def run(  # noqa: PLR0913, PLR0917 - an option each
    output: Output,
    spec: SpecificationFile = None,
    preset: PresetName = None,
    assignments: Assignments = None,
    code: Code = None,
    parts: Parts = None,
    time: Minutes = 60,
    partition: Partition = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    others: Others = None,
    as_json: AsJson = False,
) -> None:
    """Run the arms of an experiment as a job array, each job as `fedq run --part`, and print its id.

    A job that comes to its time limit, or is preempted, is requeued and continues. The folder must be on a
    file system that the nodes share. `fedq run` with the same folder shows the results.
    """
    opened = prepared(output, spec, preset, assignments, code)
    found = opened.spec
    count = 1 if found.search else min(parts or len(found.arms()), len(opened.run_keys()))
    if found.search and parts not in (None, 1):
        raise typer.BadParameter("a search compares all arms, which one job must run", param_hint="--parts")
    path, own = output.absolute(), None if code is None else code.absolute()
    tasks = [slurm.PartTask(path, (number, count), own) for number in range(1, count + 1)]
    options = slurm.JobOptions(f"fedq {found.name}", time, partition, cpus, gpus, _pairs(others))
    _submit(tasks, path / LOGS, options, as_json=as_json)


def start_workers(  # noqa: PLR0913, PLR0917 - an option each
    count: Count = 1,
    queues: Queues = None,
    logs: Logs = Path(LOGS),
    time: Minutes = 60,
    partition: Partition = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    others: Others = None,
    as_json: AsJson = False,
) -> None:
    """Start workers of a service as jobs of Slurm, and print the id of the array.

    They have the settings FEDQ_* of this command. Before its time limit, a worker finishes its
    round, hands its run back to the queue and ends. A worker that is preempted comes back.
    """
    tasks = [slurm.WorkerTask(tuple(queues or ()))] * count
    options = slurm.JobOptions("fedq workers", time, partition, cpus, gpus, _pairs(others))
    _submit(tasks, logs.absolute(), options, as_json=as_json)


def _submit(
    tasks: list[slurm.PartTask] | list[slurm.WorkerTask],
    logs: Path,
    options: slurm.JobOptions,
    *,
    as_json: bool,
) -> None:
    try:
        job = slurm.submit(tasks, logs, options)
    except slurm.SlurmError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    tell(job, as_json=as_json, job=job, jobs=len(tasks), logs=logs)


def _pairs(texts: list[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise typer.BadParameter(f"must be NAME=VALUE, not {text!r}", param_hint="--sbatch")
        found[name.removeprefix("--")] = value
    return found
