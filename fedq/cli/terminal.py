"""Output: results to stdout, as text or JSON; everything else to stderr."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console, RenderableType

from fedq.cli import completion

FILE_WIDTH = 200
"""Width of tables in files and pipes, wide enough for all columns."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExperimentId = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Experiment id.", autocompletion=completion.experiments)
]
Answer = TypeVar("Answer", bound=BaseModel | Sequence[BaseModel])


def stdout() -> Console:
    """Console for results."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)


def stderr() -> Console:
    """Console for progress, hints and errors."""
    return Console(highlight=False, stderr=True, soft_wrap=True)


def show(answer: Answer, view: Callable[[Answer], RenderableType], *, as_json: bool) -> None:
    """Print an answer as JSON, or formatted by `view`."""
    if as_json:
        print_json(answer)
    else:
        stdout().print(view(answer))


def tell(text: object, *, as_json: bool, **facts: object) -> None:
    """Print `facts` as JSON, or `text` unless it is None."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=str))
    elif text is not None:
        typer.echo(text)


def print_json(answer: BaseModel | Sequence[BaseModel]) -> None:
    """Print one JSON document."""
    document = (
        answer.model_dump(mode="json")
        if isinstance(answer, BaseModel)
        else [item.model_dump(mode="json") for item in answer]
    )
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
