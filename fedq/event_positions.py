"""Position: the text form of a place in the stream of an experiment's events, for clients and the
service, which loads no client.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice, repeat
from typing import Self

from fedcore.platform.status import Status

_UNTOLD = "-"
_DECISIONS = ".d"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_STATUSES = {status.value[0]: status for status in Status}
_GROUP = re.compile(rf"([-{''.join(_STATUSES)}])(\d{{1,9}})(?:x(\d{{1,9}}))?", re.ASCII)


@dataclass(slots=True)
class Position:
    """State that a listener has received: the status of the experiment, and the status and last
    round of each run. Changes in place.
    """

    experiment: Status | None
    statuses: list[Status | None]
    """Status of each run, in order of run ids."""
    rounds: list[int]
    """Last round sent of each run."""
    decisions: int = 0
    """Number of search decisions sent."""

    @classmethod
    def start(cls, runs: int) -> Self:
        """Position before the first event."""
        return cls(None, [None] * runs, [0] * runs)

    @classmethod
    def at(cls, experiment: Status, runs: Iterable[tuple[Status, int]], decisions: int) -> Self:
        """Position after all events of an experiment in this state; `runs` holds the status and
        completed rounds of each run, in order of run ids.
        """
        told = list(runs)
        return cls(experiment, [status for status, _ in told], [done for _, done in told], decisions)

    @classmethod
    def before(cls, runs: Iterable[tuple[Status, int]], decisions: int) -> Self:
        """Position from which the current statuses and the newest round of each run are sent, but
        no earlier round or decision.
        """
        rounds = [max(done - 1, 0) for _, done in runs]
        return cls(None, [None] * len(rounds), rounds, decisions)

    @classmethod
    def parse(cls, text: str, runs: int) -> Self:
        """Parse the output of `str` for an experiment that now has `runs` runs, the last of which
        may have been added since. Raises ValueError.
        """
        text, told_of, decisions = text.partition(_DECISIONS)
        if told_of and not _NUMBER.fullmatch(decisions):
            raise ValueError(f"{decisions!r} is not part of an event id")
        first, *groups = text.split(".")
        # No more than it takes to see that there are too many: a few characters may claim millions.
        told = list(islice((entry for group in groups for entry in _parse_group(group)), runs + 1))
        if first not in {*_STATUSES, _UNTOLD} or len(told) > runs or bool(runs) > bool(told):
            raise ValueError(f"{text!r} is not an event id of this experiment")
        told += [(None, 0)] * (runs - len(told))
        return cls(
            _STATUSES.get(first),
            [status for status, _ in told],
            [round for _, round in told],
            int(decisions or 0),
        )

    def __str__(self) -> str:
        """Initial of the experiment's status; for each run `.`, the initial of its status and its
        round; then `.d` and the number of decisions. `x` counts equal neighbours.
        """
        runs = groupby(zip(self.statuses, self.rounds, strict=True))
        decisions = f"{_DECISIONS}{self.decisions}" if self.decisions else ""
        return (
            ".".join(
                [_initial(self.experiment), *(_format_group(*run, len(list(same))) for run, same in runs)]
            )
            + decisions
        )


def _parse_group(group: str) -> Iterator[tuple[Status | None, int]]:
    match = _GROUP.fullmatch(group)
    if match is None:
        raise ValueError(f"{group!r} is not part of an event id")
    initial, round, count = match.groups(default="1")
    return repeat((_STATUSES.get(initial), int(round)), int(count))


def _format_group(status: Status | None, round: int, count: int) -> str:
    return f"{_initial(status)}{round}" + (f"x{count}" if count > 1 else "")


def _initial(status: Status | None) -> str:
    return status.value[0] if status else _UNTOLD
