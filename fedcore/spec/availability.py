"""`systems.availability`: which clients can be reached at all in a round."""

from typing import Annotated, Literal

from pydantic import Field

from fedcore.spec.base import MAX_CLIENTS, Block, Fraction

ClientId = Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
Probability = Fraction | Annotated[tuple[Fraction, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]


class AvailabilityTrace(Block):
    """The clients that can be reached, given for each round; after the last row the first comes again, as days do."""

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...], Field(fail_fast=True, min_length=1, max_length=100_000)
    ]
    """A list of client ids per round; an empty one leaves nobody."""


class RandomAvailability(Block):
    """Each client can be reached with its probability, independently in every round."""

    kind: Literal["bernoulli"]
    probability: Probability
    """One for all clients, or one for each by client id."""


AnyAvailability = Annotated[AvailabilityTrace | RandomAvailability, Field(discriminator="kind")]
