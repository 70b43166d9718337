"""Where a run diverged: the first number of its last round that was not finite.

It is looked for once, when the run has ended, by training again the clients whose change is not
finite, step after step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.core import ClientUpdate, sent_part
from fedcore.engine.assignment import Job, Result
from fedcore.engine.client_by_client import first_step_not_finite
from fedcore.engine.round import PendingRound


class Divergence(NamedTuple):
    """Where the first number was not finite."""

    words: str
    client: int | None = None
    """None if the clients' changes were finite."""
    step: int | None = None
    """The local step of the client, from 1; 0 if it is what the client began with; None if its local
    steps are finite.
    """


def find_divergence(pending: PendingRound, result: Result | None, x: Tensor) -> Divergence:
    """Find where the run of a round diverged whose `result` led to the model x [D]."""
    job, number = pending.job, pending.flow.number
    if job is not None and result is not None:
        found = [
            (step, row)
            for row in _suspects(job, result)
            if (step := first_step_not_finite(job, row)) is not None
        ]
        if found:
            step, row = min(found)
            client = int(job.work.clients[row])
            place = f"local step {step}" if step else "before its first local step"
            return Divergence(f"client {client}, {place} of round {number}", client, step)
        if (client_ := _sender(pending, job, result)) is not None:
            return Divergence(f"the message of client {client_} in round {number}", client_)
    if bool(x.isfinite().all()):
        return Divergence(f"the training loss after round {number}, of a finite model")
    return Divergence(f"the server's step of round {number}, from finite changes of clients")


def _suspects(job: Job, result: Result) -> list[int]:
    """Rows of the clients whose change is not finite; all where changes were only summed."""
    changes = result.delta if isinstance(result, ClientUpdate) else result.deltas
    if changes is None:
        return list(range(len(job.work.clients)))
    return _broken(changes)


def _sender(pending: PendingRound, job: Job, result: Result) -> int | None:
    """The first client that sent what is not finite although its training was."""
    if not isinstance(result, ClientUpdate):
        return None
    clients = torch.from_numpy(job.work.clients).to(result.delta.device)
    sent = [result.delta, *result.shared.values()]
    attackers = pending.flow.context.attackers
    if attackers is not None:
        models = pending.flow.context.algorithm.models
        sent[0] = attackers.forge(sent_part(models, result.delta), clients, pending.flow.number)
    rows = [row for vectors in sent for row in _broken(vectors)]
    return int(job.work.clients[min(rows)]) if rows else None


def _broken(vectors: Tensor) -> list[int]:
    """Rows of `vectors` [M, D] that are not finite."""
    rows: list[int] = (~vectors.isfinite().all(dim=1)).nonzero().flatten().tolist()
    return rows
