"""`evaluation.validation`: training samples that are held out, by which rounds, models and settings are
selected, so that the test samples are left for the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.block import Block, ceil_share
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule, np, random

if TYPE_CHECKING:
    from fedcore.data import federated
    from fedcore.data.federated import FederatedData, UndividedDataset
    from fedcore.data.partition import Partition
else:
    federated = LazyModule("fedcore.data.federated")

VALIDATION = "validation"
"""Purpose of randomness."""


class Validation(Block):
    """Training samples that are held out for validation: neither trained on nor tested on.

    Numbers of samples, client weights p_i and mini-batches are those of what remains for training. The
    samples are drawn at random, keyed by seed (of the partition, if it has one) and client, so that
    arms with the same partition hold out the same. They are not augmented, and are as they were before
    attackers changed their own.
    """

    share: Annotated[float, Field(gt=0, lt=1, examples=[0.1])]
    """Share of the training samples that is held out, rounded up; one at least stays for training."""
    of: Literal["clients", "server"] = "clients"
    """`clients`: this share of each client's training samples. `server`: this share of all training
    samples, before they are divided over the clients.
    """

    def held_out(self, samples: int) -> int:
        """How many of `samples`, those of a client or all, are held out."""
        return min(ceil_share(self.share, samples), samples - 1)

    def divide(
        self, data: UndividedDataset | FederatedData, partition: Partition | None, seed: int
    ) -> FederatedData:
        """Hold out samples of `data`, and divide the others by the `partition`; None for data that are
        divided.

        Raises SpecificationError if no client has two samples, or the others cannot be divided.
        """
        if partition is None:
            assert isinstance(data, federated.FederatedData)
            return self._of_clients(data, seed)
        assert isinstance(data, federated.UndividedDataset)
        own_seed = partition.own_seed(seed)
        if self.of == "clients":
            return self._of_clients(partition.divide(data, seed), own_seed)
        count = len(data.train)
        drawn = random.generator(own_seed, VALIDATION).permutation(count)
        rows = np.sort(drawn[: self.held_out(count)])
        divided = partition.divide(replace(data, reserved=rows), seed)
        return federated.with_validation(divided, rows)

    def _of_clients(self, data: FederatedData, seed: int) -> FederatedData:
        parts = np.split(data.order.numpy(force=True), data.offsets[1:-1])
        kept, held = federated.draw_parts(
            parts, [self.held_out(len(part)) for part in parts], seed, VALIDATION
        )
        owners = np.repeat(np.arange(len(held)), [len(part) for part in held])
        if not len(owners):
            raise SpecificationError(
                "/evaluation/validation",
                "no client has two training samples, of which one could be held out: use fewer clients, or"
                " `of: server`",
            )
        return federated.with_validation(
            federated.divide(data.dataset, kept, data.owners), np.concatenate(held), owners
        )
