"""Where output goes: what was asked for to stdout, as JSON or for people; all else to stderr."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console, RenderableType

from api.cli import completion

FILE_WIDTH = 200
"""A file or a pipe has no width of its own; tables are written in full."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExperimentId = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The experiment's id.", autocompletion=completion.experiments)]
Answer = TypeVar("Answer", bound=BaseModel | Sequence[BaseModel])


def stdout() -> Console:
    """For what was asked for."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)


def stderr() -> Console:
    """For progress, hints and errors."""
    return Console(highlight=False, stderr=True, soft_wrap=True)


def show(answer: Answer, view: Callable[[Answer], RenderableType], *, as_json: bool) -> None:
    """Print an answer as JSON, or as `view` lays it out."""
    if as_json:
        print_json(answer)
    else:
        stdout().print(view(answer))


def tell(text: object, *, as_json: bool, **facts: object) -> None:
    """Print `facts` as JSON, or else `text`, if there is any."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=str))
    elif text is not None:
        typer.echo(text)


def print_json(answer: BaseModel | Sequence[BaseModel]) -> None:
    """Print one JSON document."""
    document = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else [item.model_dump(mode="json") for item in answer]
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
