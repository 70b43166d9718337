"""A claim: one worker's hold on one run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from fedcore.platform.store.leases import Lease
from fedcore.platform.store.tables import Document, RunRecord

ANY_MEMORY = (1 << 63) - 1
"""Memory of a worker that takes whatever there is."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A run as its worker holds it.

    `run_id` and `fence` name the claim, the rest is what the work needs.
    """

    run_id: str
    experiment_id: str
    worker: str
    fence: int
    """Counts the claims of this run: a higher one makes this one void."""
    spec: Document
    """The experiment's specification, sweep and all."""
    arm: int
    arm_name: str
    seed: int
    done: int
    """Rounds committed."""
    rounds: int
    checkpoint: str | None
    """Where the state after round `done` is stored; None before the first."""
    until: int
    """The round up to which it may play: its last, or the next rung of its search."""
    model: str | None
    """Where the model of an earlier rung is stored."""
    queues: tuple[str, ...]
    """The queues its worker serves."""
    provenance: Document
    """Provenance of its committed rounds; empty before the first."""
    shortages: int = 0
    """How often memory ran out in it."""
    memory_bytes: int = 0
    """Estimated memory."""
    worker_memory: int = ANY_MEMORY
    """Memory that runs may take on its worker."""
    traceparent: str | None = None
    """The trace in which the experiment was submitted."""

    @classmethod
    def of(
        cls,
        run: RunRecord,
        spec: Document,
        queues: Sequence[str],
        traceparent: str | None = None,
        worker_memory: int = ANY_MEMORY,
    ) -> Self:
        """The claim on a run whose row has just been made `running`."""
        assert run.worker is not None
        return cls(
            run_id=run.id,
            experiment_id=run.experiment_id,
            worker=run.worker,
            fence=run.fence,
            spec=spec,
            arm=run.arm,
            arm_name=run.arm_name,
            seed=run.seed,
            done=run.done,
            rounds=run.rounds,
            checkpoint=run.checkpoint,
            until=run.rounds if run.until is None else run.until,
            model=run.model,
            queues=tuple(queues),
            provenance=run.provenance,
            shortages=run.shortages,
            memory_bytes=run.memory_bytes,
            worker_memory=worker_memory,
            traceparent=traceparent,
        )

    @property
    def lease(self) -> Lease:
        """The part that every write of the worker names."""
        return Lease(self.run_id, self.fence, self.worker)

    def at(self, done: int, checkpoint: str) -> Self:
        """This claim after the commit of round `done`."""
        return replace(self, done=done, checkpoint=checkpoint)
