"""Estimate the time of a plan: its counted work, at the rates that runs of the same kind last reached."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from fedcore.spec import ExperimentSpec
from fedq.planning.work import name_kind
from fedq.results.presentation import counted
from fedq.schemas import Plan

SPREAD = 2.0
"""Factor by which a run of the same kind may be slower or faster than the runs that were seen.

Batches of 10 to 600 samples of MNIST change the rate of `logistic` by a factor of 2.8, and of `cnn` of
1.4; runs of a second on tiny data are up to 8 times slower.
"""


def add_seconds(
    plan: Plan, spec: ExperimentSpec, rates: Callable[[str], Sequence[float]], where: str
) -> Plan:
    """Return the plan of `spec` with a range of seconds for all runs, or the reason why there is none.

    `rates` returns the work per second of the latest runs of a kind (`name_kind`), and `where` says in
    words where they were seen, e.g. `on this machine`.
    """
    work = defaultdict[str, float](float)
    for arm, point in zip(plan.arms, spec.arms(), strict=False):  # A study is planned as one arm.
        work[name_kind(point.spec)] += arm.runs * arm.work
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
