"""Where a listener of an experiment's events stands, and that as text: the `id:` of every event."""

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
    """What a listener was told: the experiment's status, and each run's status and last round.

    Changes in place.
    """

    experiment: Status | None
    statuses: list[Status | None]
    """Of the runs, in order of their ids."""
    rounds: list[int]
    """The last one told of each run."""
    decisions: int = 0
    """So many of a search were told."""

    @classmethod
    def start(cls, runs: int) -> Self:
        """Nothing was told."""
        return cls(None, [None] * runs, [0] * runs)

    @classmethod
    def at(cls, experiment: Status, runs: Iterable[tuple[Status, int]], decisions: int) -> Self:
        """All was told of an experiment that stands so.

        Of each run status and rounds done, in order of their ids.
        """
        told = list(runs)
        return cls(experiment, [status for status, _ in told], [done for _, done in told], decisions)

    @classmethod
    def before(cls, runs: Iterable[tuple[Status, int]], decisions: int) -> Self:
        """Nothing was told of how an experiment stands, but for all rounds before the newest of
        each run, and the decisions.
        """
        rounds = [max(done - 1, 0) for _, done in runs]
        return cls(None, [None] * len(rounds), rounds, decisions)

    @classmethod
    def parse(cls, text: str, runs: int) -> Self:
        """What `str` wrote, for an experiment that has `runs` runs by now, the last ones of which
        may be new; raises ValueError.
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
        """The initial of the experiment's status.

        Then, for each run, `.`, initial and round; last `.d` and decisions.

        `x` counts equal neighbours.
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
