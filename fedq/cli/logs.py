"""`fedq logs`: what workers logged about a run, wherever they are, and what the processes of the service
on this machine have written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.platform.status import ENDED, LogLevel
from fedq.cli import connection
from fedq.cli.connection import connect
from fedq.cli.lazy import configuration
from fedq.cli.terminal import (
    AsJson,
    ExitCode,
    complain,
    echo,
    echo_json,
)

if TYPE_CHECKING:
    from fedq.client import Client
    from fedq.schemas import LogLine

POLL_S, SERVICE_POLL_S = 0.5, 2.0
"""Between two looks for new lines in files, and in the database, where they are stored every few
seconds.
"""
_RUN = re.compile(r"run_[0-9a-z]+")
Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT|RUN]",
        help=(
            "Only lines about this run, by its id or a unique beginning of it, or about this experiment and"
            " its runs: its id, a unique beginning of it, its name, or @last (default: all)."
        ),
        autocompletion=connection.complete_experiments,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines to begin with.")]
Level = Annotated[
    LogLevel, typer.Option("--level", help="Print only lines of this level and of more severe ones.")
]


def logs(
    subject: Subject = None,
    follow: Follow = False,
    lines: Lines = 100,
    level: Level = LogLevel.DEBUG,
    as_json: AsJson = False,
) -> None:
    """Print the newest log lines, oldest first: of a run, which the service keeps wherever its workers
    are, or of all processes of the service that `fedq up` runs in FEDQ_HOME.

    Following a run ends with the run. For a remote service, only run logs are available; the logs of
    its processes are where they run: `docker compose logs`, `kubectl logs`.
    """
    try:
        if subject is not None and _RUN.fullmatch(subject):
            with connect() as client:
                run_id = client.run(subject).id
            _print_runs([run_id], lines, level, follow=follow, as_json=as_json)
        else:
            _print_files(subject, lines, level, follow=follow, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print_files(experiment: str | None, lines: int, level: LogLevel, *, follow: bool, as_json: bool) -> None:
    """Print lines of the log files of this machine; for an experiment without any, the log lines of
    the service.
    """
    folder = configuration.settings().home / "logs"
    wanted = () if experiment is None else _ids(experiment)
    if experiment is None and not folder.is_dir():
        complain(
            f"there are no logs in {folder}; set FEDQ_HOME to the folder of `fedq up`, or name a run or an"
            " experiment"
        )
        raise typer.Exit(ExitCode.IMPOSSIBLE)
    reader = _LogReader(folder, wanted, level)
    found = sorted(reader.new_lines(), key=_moment)
    if wanted and not found:
        _print_runs(wanted[1:], lines, level, follow=follow, as_json=as_json)
        return
    for line in found[max(0, len(found) - lines) :]:
        _print(line, as_json=as_json)
    while follow:
        time.sleep(POLL_S)
        for line in sorted(reader.new_lines(), key=_moment):
            _print(line, as_json=as_json)


def _ids(experiment: str) -> list[str]:
    """The id of an experiment, followed by the ids of its runs."""
    with connect() as client:
        found = client.experiment(experiment).id
        return [found, *(run.id for run in client.runs(found))]


def _print_runs(run_ids: Sequence[str], lines: int, level: LogLevel, *, follow: bool, as_json: bool) -> None:
    """Print the stored lines of runs, in the order of time, and new ones until the runs have ended."""
    with connect() as client:
        after = dict.fromkeys(run_ids, 0)
        is_first = True
        while True:
            # Before their lines are read: those of a run that has ended are complete.
            ended = [run_id for run_id in after if follow and client.run(run_id).status in ENDED]
            found = sorted(_new_lines(client, after, level), key=lambda line: line.time)
            for line in found[max(0, len(found) - lines) if is_first else 0 :]:
                if as_json:
                    echo_json(line.model_dump_json())
                else:
                    echo(line)
            is_first = False
            for run_id in ended:
                del after[run_id]
            if not (follow and after):
                return
            time.sleep(SERVICE_POLL_S)


def _new_lines(client: Client, after: dict[str, int], level: LogLevel) -> Iterator[LogLine]:
    """Lines of each run after the number given for it, which is moved on."""
    for run_id, number in list(after.items()):
        for line in client.logs(run_id, number, level=level):
            after[run_id] = line.number
            yield line


class _LogReader:
    """Reads what is added to the log files of a folder. Changes in place."""

    def __init__(self, folder: Path, wanted: Collection[str], level: LogLevel) -> None:
        """Lines name one of the ids `wanted`; none: all lines. Those that tell their level have at least
        `level`.
        """
        self._folder, self._wanted = folder, wanted
        self._levels = level.and_above
        self._read: dict[Path, int] = {}

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Complete lines since the last call, file by file."""
        for path in sorted(self._folder.glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            moment = ""
            for line in whole.decode(errors="replace").splitlines():
                entry = _parsed(line, path.stem)
                # Lines of a traceback belong to the line above.
                moment = entry.setdefault("time", moment)
                if entry.get("level", LogLevel.CRITICAL) in self._levels and (
                    not self._wanted or any(id in line for id in self._wanted)
                ):
                    yield entry


def _parsed(line: str, process: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {"process": process, "event": line}


def _moment(entry: dict[str, Any]) -> str:
    return str(entry.get("time", ""))


SHOWN = ("time", "process", "level", "event", "logger", "exception")


def _print(entry: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(json.dumps(entry, ensure_ascii=False))
        return
    head = " ".join(str(entry[name]) for name in SHOWN[:4] if entry.get(name))
    facts = " ".join(f"{name}={value}" for name, value in entry.items() if name not in SHOWN)
    echo(" ".join(filter(None, (head, facts))))
    if entry.get("exception"):
        echo(entry["exception"])
