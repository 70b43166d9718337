"""The beginning of a synchronous round: clients are drawn and selected, their work is planned, and those who
miss the deadline are dropped. Plans play it, too, so it loads no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedcore.lazy import np
from fedcore.messages import RoundMessage, answer_of, report_of
from fedcore.systems.clock import TimedRound, apply_deadline
from fedcore.systems.cohorts import Drawn, draw
from fedcore.systems.participation.base import RoundFacts
from fedcore.systems.timing import DrawContext, RoundTiming, estimate_timing, speed_of
from fedcore.systems.work import Work, plan_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedcore.systems.traffic import Traffic

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

Choose = Callable[[Drawn, RoundMessage | None, RoundFacts], Drawn]
"""The cohort among the clients drawn, who were asked for an answer or not."""


@dataclass(frozen=True, slots=True)
class SelectedCohort:
    """The clients of one round that reach the server; there may be none."""

    arrived: Drawn
    drawn: int
    """How many clients were drawn, late ones included."""
    work: list[Work]
    """M, of those who arrive."""
    bytes_up: int
    """Bytes sent before training: the answers of candidates, and the losses that clients report."""
    bytes_down: int
    """Bytes that reached all clients who were drawn, before they train."""
    seconds: float | None
    """Duration of the round on the simulated clock, if there is one."""
    timing: RoundTiming | None = None
    """How the clients spent it."""
    facts: RoundFacts | None = None
    """Facts that the scheme selected by; None in an asynchronous run, which has no scheme."""
    evaluations: int = 0
    """Losses and full gradients that clients computed for the selection, each over all their
    samples.
    """
    losses: Floats | None = None
    """[M] F_i(x) of those who arrive, if the scheme observes it."""
    client_seconds: Floats | None = None
    """[M] seconds on the simulated clock, if there is one."""

    @property
    def clients(self) -> Ids:
        """[M] ids of those who arrive, ascending."""
        return self.arrived.clients


def select_cohort(
    context: DrawContext, seconds: float, traffic: Traffic, round: int, choose: Choose
) -> SelectedCohort:
    """Select the clients of round `round`, counted from 1, which begins at `seconds` on the simulated clock,
    by `choose` among those drawn. `traffic` changes in place. Losses are left to the caller.
    """
    spec, seed, share = context.spec, context.seed, context.share
    scheme, reachable = spec.participation, None
    if context.availability is not None:
        reachable = context.availability.reachable_at(seconds, len(share), seed, round)
    drawn = draw(scheme, share, seed, round, reachable)
    estimate = partial(estimate_timing, context, traffic, round) if spec.systems.devices else None
    facts = RoundFacts(round, share, context.sizes, estimate)
    answer, report = answer_of(scheme, context.dim), report_of(scheme)
    candidates, evaluations = drawn.clients, 0 if answer is None else len(drawn.clients)
    drawn = choose(drawn, answer, facts)
    informed = drawn.clients if answer is None else candidates
    received = traffic.down(informed, round)
    bytes_up, bytes_down = traffic.sent(answer, evaluations), int(received.sum())
    if answer is not None:
        received = received[np.isin(informed, drawn.clients)]
    work, arrives = plan_work(spec.local, spec.systems, context.sizes, drawn.clients, seed, round)
    duration = timing = client_seconds = None
    if spec.systems.devices is not None:
        planned = TimedRound(work, arrives, 0.0)
        (work, arrives, duration), each = _timed(context, traffic, drawn.clients, received, planned, round)
        busy = np.minimum(each, duration).sum() / duration if duration else len(each)
        timing, client_seconds = RoundTiming(float(busy), len(each)), each[arrives]
    arrived = drawn[arrives]
    reports = 0 if report is None else len(arrived.clients)
    return SelectedCohort(
        arrived=arrived,
        drawn=len(drawn.clients),
        work=[item for item, kept in zip(work, arrives, strict=True) if kept],
        bytes_up=bytes_up + traffic.sent(report, reports),
        bytes_down=bytes_down,
        seconds=duration,
        timing=timing,
        facts=facts,
        evaluations=evaluations + reports,
        client_seconds=client_seconds,
    )


def _timed(
    context: DrawContext, traffic: Traffic, clients: Ids, received: Ids, planned: TimedRound, round: int
) -> tuple[TimedRound, Floats]:
    """Apply the simulated clock's deadline to `planned`; also the seconds [M] that each client takes."""
    systems, (up, down), settling = context.spec.systems, traffic.exchange(1, round), traffic.settling(1)
    # The upload; the model, and then the next one, if they are sent; and an exchange of gradients,
    # up and down.
    messages = 1 + (received > 0) + (settling > 0) + 2 * bool(up or down)
    cohort = speed_of(context, clients, received + down + settling, traffic.up(1) + up, messages)
    timed = apply_deadline(systems.deadline, cohort, planned.work, planned.arrives)
    if context.availability is not None and not len(clients) and systems.deadline is None:
        timed = timed._replace(seconds=context.availability.empty_round_seconds())
    return timed, cohort.seconds(np.array([item.steps for item in timed.work], np.int64))
