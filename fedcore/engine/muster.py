"""Who takes part in a round: the draw, what each client is to do, and who is on time."""

from dataclasses import dataclass

from fedcore.data.plan import Work
from fedcore.engine.server import Setting
from fedcore.engine.traffic import Ids, Traffic
from fedcore.systems.availability import reachable
from fedcore.systems.clock import Turnout, pace, turn_out
from fedcore.systems.participation import Drawn, draw
from fedcore.systems.work import plan_work


@dataclass(frozen=True, slots=True)
class Muster:
    """The clients of one round that reach the server; there may be none."""

    arrived: Drawn
    drawn: int
    """How many clients were drawn, late ones included."""
    work: list[Work]
    """M, of those who arrive."""
    bytes_down: int
    """That reached all who were drawn, before they train."""
    seconds: float | None
    """What the round takes on the simulated clock, if there is one."""


def muster(setting: Setting, traffic: Traffic, round: int) -> Muster:
    """Those of round `round`, counted from 1; `traffic` changes in place."""
    spec, seed, problem = setting.spec, setting.seed, setting.problem
    among = reachable(spec.systems.availability, len(problem.share), seed, round)
    drawn = draw(spec.participation, problem.share, seed, round, among)
    work, arrives = plan_work(spec.local, spec.systems, problem.sizes, drawn.clients, seed, round)
    received, seconds = traffic.down(drawn.clients, round), None
    if spec.systems.devices is not None:
        work, arrives, seconds = _timed(setting, traffic, drawn.clients, received, Turnout(work, arrives, 0.0), round)
    chosen = [item for item, kept in zip(work, arrives, strict=True) if kept]
    return Muster(drawn[arrives], len(drawn.clients), chosen, int(received.sum()), seconds)


def _timed(setting: Setting, traffic: Traffic, clients: Ids, received: Ids, planned: Turnout, round: int) -> Turnout:
    """`planned`, held to the clock."""
    systems, (up, down), settling = setting.spec.systems, traffic.exchange(1, round), traffic.settling(1)
    assert systems.devices is not None
    # The upload; the model, and then the next one, if they are sent; and an exchange of gradients, up and down.
    messages = 1 + (received > 0) + (settling > 0) + 2 * bool(up or down)
    cohort = pace(systems.devices, clients, received + down + settling, traffic.up(1) + up, messages, setting.seed)
    return turn_out(systems.deadline, cohort, planned.work, planned.arrives)
