"""`problem.dataset` of kind `uploaded`: a user's own data, by id, with a frozen description of what is in them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.spec.base import MAX_CLIENTS, Block

Count = Annotated[int, Field(ge=0, lt=2**53)]


class Content(Block):
    """What is in an uploaded data set: all that a specification has to know of it, and the digest by which a run is repeatable."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 over the arrays as they are kept."""
    features: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**53)], ...], Field(fail_fast=True, min_length=1, max_length=8)]
    """Shape of one sample."""
    classes: Count
    """Number of classes; 0 where labels are real numbers, for regression."""
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None
    """Number of clients N; null for data in one piece, which take a `partition`."""
    train_samples: Annotated[int, Field(ge=1, lt=2**53)]
    """Samples to train on."""
    test_samples: Count
    """Samples held out for testing; without any, test losses and accuracies are left out."""


class Uploaded(Block):
    """A user's own data, uploaded to the service: features, labels and, unless they come in one piece, the client of each sample."""

    kind: Literal["uploaded"]
    id: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[0-9a-z_]+$")] | None = None
    """The data set's id, as `POST /v1/datasets` answers it; absent for a file kept on this machine."""
    content: Content | None = None
    """What is in it. The service fills it in by the id; whatever is given is replaced."""

    @model_validator(mode="after")
    def _is_described(self) -> Self:
        if self.content is None:
            raise ValueError(
                "the content of an uploaded data set must be known: submit it to the service that has it, or take the block from "
                "fedcore.uploads.local.keep(file)"
            )
        return self

    @property
    def known(self) -> Content:
        """What is in it."""
        assert self.content is not None
        return self.content
