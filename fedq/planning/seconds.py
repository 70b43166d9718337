"""Estimate the time of a plan: its counted work, at the rates at which runs of the same kind were last seen
to do theirs.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from fedcore.spec import ExperimentSpec
from fedq.planning.work import kind_of_work
from fedq.results.presentation import counted
from fedq.schemas import Plan

SPREAD = 1.5
"""Factor by which a run of the same kind may be slower or faster than those that were seen."""


def add_seconds(plan: Plan, spec: ExperimentSpec, rates: Callable[[str], Sequence[float]], where: str) -> Plan:
    """Return the plan of `spec` with a range of seconds for all runs, or the reason why there is none.

    `rates` returns the work per second of the latest runs of a kind (`kind_of_work`), and `where` says in
    words where they were seen, e.g. `on this machine`.
    """
    work = Counter[str]()
    for arm, point in zip(plan.arms, spec.arms(), strict=False):  # A study is planned as one arm.
        work[kind_of_work(point.spec)] += arm.runs * arm.work
    seen = {kind: rates(kind) for kind in work}
    for kind, found in seen.items():
        if not found:
            source = f"no run of this kind ({kind}) has been seen {where} yet"
            return plan.model_copy(update={"seconds_source": source})
    share = plan.search.rounds / plan.rounds if plan.search else 1.0
    told = {
        "seconds_low": share * sum(amount / max(seen[kind]) for kind, amount in work.items()) / SPREAD,
        "seconds_high": share * sum(amount / min(seen[kind]) for kind, amount in work.items()) * SPREAD,
        "seconds_source": "; ".join(
            f"{counted(len(found), 'recent run')} of {kind}, {where}" for kind, found in seen.items()
        ),
    }
    return plan.model_copy(update=told)
