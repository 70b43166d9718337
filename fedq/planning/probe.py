"""Estimate the time of a plan by playing a few rounds of its first arm, in a process of its own
(`fedq.local.probed_rounds`) that is killed at the end of its time.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from threading import Timer
from time import monotonic
from typing import NamedTuple, Self

from fedcore.spec import ExperimentSpec
from fedcore.spec.engines import facts_about
from fedq.schemas import Plan

LOAD_S = 60.0
"""Longest time for loading data and model."""
LIMIT_S = 20.0
"""Longest time for playing rounds."""
ROUNDS = 10
READY = "ready"


class Probe(NamedTuple):
    """Outcome of a probe."""

    round_s: float | None = None
    """Mean seconds of a round; None if none could be played."""
    at_least: bool = False
    """True if no round ended in time: `round_s` is the time after which it was given up."""
    reason: str | None = None
    """Reason why no round could be played."""

    @classmethod
    def of(cls, rounds_s: Sequence[float]) -> Self:
        """Outcome of rounds that took this long; the first one also prepares the others."""
        later = rounds_s[1:] or rounds_s
        return cls(sum(later) / len(later))


Play = Callable[[float, float], Probe]
"""Plays rounds, for a longest time in seconds after a longest time of loading."""


def estimated(
    plan: Plan,
    spec: ExperimentSpec,
    limit_s: float = LIMIT_S,
    load_s: float = LOAD_S,
    play: Play | None = None,
) -> Plan:
    """Return the plan of `spec` with the time that a probe on this machine leads to, or a warning.

    `play` plays the rounds (default: `probe`, without uploads, and not those of a code bundle).
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if plan.memory_bytes > available:
        return _unknown(plan, "its runs need more memory than this machine has")
    if play is None and spec.code is not None:
        return _unknown(plan, "a service has its code bundle: ask it by `fedq submit --dry-run`")
    found = play(limit_s, load_s) if play else probe(spec, limit_s, load_s)
    if found.round_s is None:
        return _unknown(plan, found.reason or "the rounds could not be played")
    played = plan.search.rounds / plan.rounds if plan.search else 1.0
    first = plan.arms[0]
    # All rounds, as many times as costly as those of the first arm as they compute gradients.
    rounds = plan.gradients / max(first.gradients, 1) * spec.rounds * played
    told: dict[str, object] = {"seconds": found.round_s * rounds, "seconds_from": "probe"}
    if found.at_least:
        told["warnings"] = [
            *plan.warnings,
            f"no round ended within {found.round_s:.0f} s: the runs take longer than estimated",
        ]
    return plan.model_copy(update=told)


def probe(spec: ExperimentSpec, limit_s: float, load_s: float, storage: str | None = None) -> Probe:
    """Play up to ROUNDS rounds of the first arm and seed of `spec`, for at most `limit_s` seconds after
    at most `load_s` seconds of loading. Uploaded data sets come from the storage with this URL; None:
    from FEDQ_DATA_DIR.
    """
    if not _is_installed("torch"):
        return Probe(reason="it needs additional packages: pip install 'fedq[library]'")
    arm = spec.arms()[0].spec.with_estimates()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedq.local.probed_rounds"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    # With the processes that it started.
    timer = Timer(load_s, _kill, [process.pid])
    timer.start()
    ready: float | None = None
    rounds: list[float] = []
    reason = None
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), process.stdin as file:
            facts = asdict(facts_about(spec))
            json.dump({"specification": arm.model_dump(mode="json"), "arms": facts, "storage": storage}, file)
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == READY:
                timer.cancel()
                ready, timer = monotonic(), Timer(limit_s, _kill, [process.pid])
                timer.start()
            elif word == "round":
                rounds.append(float(rest))
            else:
                reason = rest
    finally:
        timer.cancel()
        _kill(process.pid)
        process.stdout.close()
        code = process.wait()
    if rounds:
        return Probe.of(rounds)
    if reason is None and code != -signal.SIGKILL:
        return Probe(reason=f"the process that plays the rounds ended with code {code}")
    if ready is not None and reason is None:
        return Probe(monotonic() - ready, at_least=True)
    return Probe(reason=reason or f"loading its data and model takes more than {load_s:.0f} s")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _unknown(plan: Plan, reason: str) -> Plan:
    return plan.model_copy(update={"warnings": [*plan.warnings, f"no estimate of the time: {reason}"]})
