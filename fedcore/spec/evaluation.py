"""`evaluation` and `execution`: what is measured, and how the work is done."""

from typing import Annotated, Literal

from pydantic import Field

from fedcore.spec.base import Block

Measure = Literal["train_loss", "test_loss", "test_accuracy", "gradient_diversity", "b_dissimilarity", "gradient_variance"]
"""Measures that cost an evaluation; local steps, bytes and seconds are always reported."""


class Evaluation(Block):
    """What is measured and when; an exact problem also reports objective, suboptimality and distance."""

    every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Evaluate after every so many rounds; the last round is always evaluated."""
    measures: tuple[Measure, ...] = ("train_loss", "test_loss", "test_accuracy")
    """train_loss is f(w) over the training data of all clients, weighted by p_i; those without a meaning for the
    problem (accuracy of a quadratic) are left out of its rows."""
    record_parameters: bool = False
    """Put the global iterate x itself into every row (at most 1,000 parameters)."""


class Execution(Block):
    """How the runs are carried out; it never changes what they compute beyond rounding."""

    queue: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = "default"
    """Only workers that serve this queue take the runs."""
    priority: Annotated[int, Field(ge=0, le=9)] = 5
    """Higher goes first."""
    engine: Literal["auto", "reference", "vectorised"] = "auto"
    """`reference` loops over clients; `vectorised` computes them together; `auto` loops for convolutions only."""
    precision: Literal["float32", "float64"] | None = None
    """Absent: float32, and float64 for exact problems."""
