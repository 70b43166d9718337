"""Pool the samples of all clients: one client takes the steps of a cohort."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.engine.stages.base import Flow, RoundStage, RoundState
from fedcore.systems.cohorts import Drawn
from fedcore.systems.work import pool_work


class Pool(RoundStage):
    """Have one client, who holds the samples of all, take the steps of the cohort."""

    name = "pool"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        context, selected = flow.context, flow.selected
        assert selected is not None
        pooled, local = context.trained, context.spec.local
        whole = local.batch_size == "full" and context.spec.systems.batch_size is None
        held = context.problem.sizes[selected.clients]
        work = pool_work(selected.work, held, int(pooled.sizes[0]), whole=whole)
        one = np.zeros(1, np.int64)
        return state, replace(
            flow,
            context=replace(context, problem=pooled),
            selected=replace(selected, arrived=Drawn(one, one + 1), work=[work]),
            starts=tuple(replace(start, rows=one) for start in flow.starts),
            weights=np.ones(1),
            factor=1.0,
        )
