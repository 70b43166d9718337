"""`fedq logs`: what the processes of the service on this machine have written."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.lazy import LazyModule
from fedq.cli import connection
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, ExitCode, complain

if TYPE_CHECKING:
    from fedcore import settings as configuration
else:
    configuration = LazyModule("fedcore.settings")

POLL_S = 0.5
OfExperiment = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help=(
            "Only lines about this experiment and its runs: its id, a unique beginning of it, its name, or"
            " @last (default: all)."
        ),
        autocompletion=connection.complete_experiments,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines to begin with.")]


def logs(
    experiment: OfExperiment = None, follow: Follow = False, lines: Lines = 100, as_json: AsJson = False
) -> None:
    """Print the newest log lines of the service that `fedq up` runs in FEDQ_HOME, oldest first.

    Services elsewhere log where they run: `docker compose logs`, `kubectl logs`.
    """
    folder = configuration.settings().home / "logs"
    if not folder.is_dir():
        complain(f"there are no logs in {folder}; set FEDQ_HOME to the folder of `fedq up`")
        raise typer.Exit(ExitCode.IMPOSSIBLE)
    wanted = () if experiment is None else _ids(experiment)
    reader = _LogReader(folder, wanted)
    found = sorted(reader.new_lines(), key=_moment)
    for line in found[len(found) - min(lines, len(found)) :]:
        _print(line, as_json=as_json)
    try:
        while follow:
            time.sleep(POLL_S)
            for line in sorted(reader.new_lines(), key=_moment):
                _print(line, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _ids(experiment: str) -> list[str]:
    with connect() as client:
        found = client.experiment(experiment).id
        return [found, *(run.id for run in client.runs(found))]


class _LogReader:
    """Reads what is added to the log files of a folder. Changes in place."""

    def __init__(self, folder: Path, wanted: Collection[str]) -> None:
        """Lines name one of the ids `wanted`; none: all lines."""
        self._folder, self._wanted = folder, wanted
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
                if not self._wanted or any(id in line for id in self._wanted):
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
        typer.echo(json.dumps(entry, ensure_ascii=False))
        return
    head = " ".join(str(entry[name]) for name in SHOWN[:4] if entry.get(name))
    facts = " ".join(f"{name}={value}" for name, value in entry.items() if name not in SHOWN)
    typer.echo(" ".join(filter(None, (head, facts))))
    if entry.get("exception"):
        typer.echo(entry["exception"])
