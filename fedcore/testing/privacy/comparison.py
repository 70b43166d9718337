"""Comparison of what two coupled runs released and showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.privacy.base import GRADIENT, MESSAGE, Privacy, PrivateRun, Release
from fedcore.testing.privacy.worlds import Canary

TOLERANCE = 1e-6
"""Share by which a value may move beyond its sensitivity: rounding."""
LEAST_NOISE, MOST_NOISE = 0.5, 1.5
"""Deviation of the noise of a round over the declared one, for vectors long enough to tell."""
ENOUGH = 100
"""Length from which vectors are long enough to tell."""
CORRELATED = 6
"""Standard deviations by which the correlation of two rounds' noises may be off."""
CHANGES_OF_OTHERS = "changes of other clients"
Ids = NDArray[np.int64]
Key = tuple[Any, ...]


class Violation(NamedTuple):
    """Something that a run lets through beyond what is accounted for."""

    canary: str
    round: int
    what: str
    ratio: float | None = None
    """Move of the released values over the largest that is allowed."""

    def __str__(self) -> str:
        return f"{self.what} (round {self.round}, canary `{self.canary}`)"


@dataclass
class Tape:
    """Values that a run released, and all else that its adversary saw; filled in place as it is played."""

    history: Tape | None = None
    """Tape of the first world, with whose released values the second goes on; None for the first."""
    round: int = 0
    values: dict[Key, Tensor] = field(default_factory=dict)
    """Released values by (name, round, ...), with the noise that both worlds share."""
    passed: dict[Key, Any] = field(default_factory=dict)
    """Values that the run went on with."""
    releases: dict[Key, Release] = field(default_factory=dict)
    """Declaration of the name in the round."""
    noise: dict[Key, Tensor] = field(default_factory=dict)
    """Noise over its declared deviation."""
    views: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Other facts that must be the same, by round; what other clients keep and change, to rounding."""
    arrived: dict[int, Ids] = field(default_factory=dict)
    orders: dict[Key, NDArray[Any]] = field(default_factory=dict)
    """Permutations of the cohort, by purpose and round."""
    uses: dict[Key, Ids] = field(default_factory=dict)
    """Samples that are in a gradient."""
    evaluations: Counter[Key] = field(default_factory=Counter)
    """Gradients by round and client."""
    draws: Counter[Key] = field(default_factory=Counter)
    """Noise vectors for gradients, by round and client."""
    disturbed: tuple[int, int] | None = None
    """Gradients that are moved: which of how many in a step."""
    moved: Mapping[Key, int] | None = None
    """If all gradients are moved against their noise: how many there are in a step, by round and client."""

    def drop_gradients(self, slot: int, count: int) -> None:
        """Leave out each `count`-th gradient of a client from `slot` on: it is not released."""
        for key in [key for key in self.values if key[0] == GRADIENT and key[3] % count == slot]:
            del self.values[key]
            self.evaluations[key[1:3]] -= 1
            self.uses.pop(key, None)

    def release(self, key: Key, value: Tensor, declared: Release) -> None:
        """Note a released value."""
        self.values[key], self.releases[key] = value.detach().clone(), declared

    def see(self, name: str, value: Any) -> None:
        """Note what else is seen in this round."""
        self.views.setdefault(self.round, {})[name] = value

    def go_on(self, key: Key, value: Any) -> Any:
        """Return the value to go on with: `value`, or that of the first world."""
        self.passed[key] = value
        return value if self.history is None else self.history.passed.get(key, value)


@dataclass(frozen=True)
class WorldComparison:
    """Two worlds of a canary, side by side."""

    privacy: Privacy
    run: PrivateRun
    canary: Canary
    client: int
    first: Tape
    second: Tape

    def violations(self, rounds: int) -> list[Violation]:
        """One of each kind, the first in time, and the largest move."""
        return [
            *self._same(rounds),
            *self._counted(rounds),
            *self._moved(),
            *self._noise(),
            *self._total(rounds),
        ]

    def _violation(self, round: int, what: str, ratio: float | None = None) -> Violation:
        return Violation(self.canary.name, round, what, ratio)

    def _same(self, rounds: int) -> Iterator[Violation]:
        """Find differences in values that are not released."""
        for round in range(1, rounds + 1):
            cohorts = [tape.arrived.get(round) for tape in (self.first, self.second)]
            if any(cohort is None for cohort in cohorts):
                yield self._violation(round, "the run ended, since the model is not finite")
                return
            if not np.array_equal(*(cohort[cohort != self.client] for cohort in cohorts)):  # type: ignore[index]
                yield self._violation(round, "other clients take part")
                return
            seen, again = self.first.views.get(round, {}), self.second.views.get(round, {})
            differing = [name for name in seen.keys() | again.keys() if not are_equal(name, seen, again)]
            if differing:
                names = ", ".join(sorted(differing)[:5])
                yield self._violation(round, f"what is not released with noise differs: {names}")
                return

    def _counted(self, rounds: int) -> Iterator[Violation]:
        """Find gradients without noise of their own or not accounted for, and rounds without a
        release.
        """
        if self.privacy.clips_samples:
            yield from self._counted_gradients(rounds)
            return
        if not self.privacy.replaces_aggregator or not (self.first.passed or self.second.passed):
            return  # If nothing ever travels, no round shows that it has no client.
        for round in range(1, rounds + 1):
            for tape in (self.first, self.second):
                if round in tape.arrived and ("combined", round) not in tape.passed:
                    yield self._violation(round, "a round without a client releases nothing, which shows")
                    return

    def _counted_gradients(self, rounds: int) -> Iterator[Violation]:
        for (round, client), count in self.first.evaluations.items():
            drawn = self.first.draws[round, client]
            if count > drawn:
                yield self._violation(round, f"{count} gradients of a client have the noise of {drawn}")
                break
        uses: Counter[Key] = Counter()
        for round in range(1, rounds + 1):
            for key, samples in self.first.uses.items():
                if key[1] == round:
                    uses.update((key[2], sample) for sample in samples.tolist())
            used = max(uses.values(), default=0)
            _, counted = self.privacy.releases(self.privacy.noise(self.run), self.run, round)
            if used > counted:
                what = f"a sample is in {used} gradients, and the accountant counts {counted}"
                yield self._violation(round, what)
                return

    def _moved(self) -> Iterator[Violation]:
        """Released values move by their sensitivity at most."""
        worst: dict[str, tuple[int, float]] = {}
        for key, value in self.first.values.items():
            name, round = key[:2]
            other, declared = self.second.values.get(key), self.first.releases[key]
            if other is None or len(other) != len(value):
                continue
            allowed = declared.sensitivity * self.canary.factor
            if name in {MESSAGE, GRADIENT} and key[2] != self.client:
                allowed *= TOLERANCE
            moved = float((value - other).norm()) / allowed
            if moved != moved:  # noqa: PLR0124 - NaN
                moved = float("inf")
            if moved > max(1 + TOLERANCE, worst.get(name, (0, 0.0))[1]):
                worst[name] = round, moved
        for name, (round, moved) in worst.items():
            yield self._violation(
                round, f"the released {name} moves by {moved:.4g} times its sensitivity", moved
            )

    def _noise(self) -> Iterator[Violation]:
        """The noise has the declared size, and is no other release's."""
        rows = self.privacy.noise_of_rounds(max((key[1] for key in self.first.noise), default=1))
        seen: dict[bytes, Key] = {}
        for key, noise in self.first.noise.items():
            expected = float(np.linalg.norm(rows[key[1] - 1]))
            found = float(noise.double().square().mean().sqrt()) / expected
            enough = len(noise) >= ENOUGH
            if not (LEAST_NOISE < found < MOST_NOISE if enough else found > 0):
                what = f"the noise of the released {key[0]} has {found:.3g} times its declared deviation"
                yield self._violation(key[1], what)
                return
            drawn = (noise.double() / expected).numpy(force=True).round(9).tobytes()
            if drawn in seen:
                yield self._violation(
                    key[1], f"the released {key[0]} has the noise of round {seen[drawn][1]} once more"
                )
                return
            seen[drawn] = key
        yield from self._correlations(np.array(rows))

    def _correlations(self, rows: NDArray[np.float64]) -> Iterator[Violation]:
        """The noises of two rounds are as correlated as is declared, and do not cancel in their sum."""
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        streams: dict[Key, dict[int, Tensor]] = {}
        for key, noise in self.first.noise.items():
            if len(noise) >= ENOUGH:
                streams.setdefault((key[0], *key[2:]), {})[key[1]] = noise.double() / noise.double().norm()
        for (name, *_), noises in streams.items():
            for (one, first), (other, second) in combinations(sorted(noises.items()), 2):
                found, expected = float(first @ second), float(rows[one - 1] @ rows[other - 1])
                if not abs(found - expected) * len(first) ** 0.5 <= CORRELATED:
                    what = f"the noise of the released {name} has a correlation of {found:.2f} with that of"
                    yield self._violation(other, f"{what} round {one}, and {expected:.2f} is declared")
                    return

    def _total(self, rounds: int) -> Iterator[Violation]:
        """The moves of all rounds so far, over their noise, are at most what the accountant counts.

        mu^2 = sum_d m_d' (F F')^-1 m_d, where F [T, K] are the noises of the rounds and m_d [T] the
        moves in coordinate d, over the deviation.
        """
        moves: dict[Key, dict[int, list[Tensor]]] = {}
        for key, value in self.first.values.items():
            other = self.second.values.get(key)
            if other is None or len(other) != len(value) or self.first.releases[key].deviation == 0:
                continue
            move = (value - other).double() / (self.first.releases[key].deviation * self.canary.factor)
            moves.setdefault((key[0], *key[2:]), {}).setdefault(key[1], []).append(move)
        factors = np.array(self.privacy.noise_of_rounds(rounds))
        for last in range(1, rounds + 1):
            square = 0.0
            for by_round in moves.values():
                any_move = next(iter(by_round.values()))[0]
                stacked = torch.stack(
                    [sum(by_round.get(t, []), torch.zeros_like(any_move)) for t in range(1, last + 1)]
                )
                part = torch.from_numpy(np.linalg.inv(factors[:last] @ factors[:last].T)).to(stacked)
                square += float(torch.einsum("td,ts,sd->", stacked, part, stacked))
            release, count = self.privacy.releases(self.privacy.noise(self.run), self.run, last)
            allowed = count / release.ratio**2
            if not square <= allowed * (1 + TOLERANCE) + 1e-12:
                ratio = (square / allowed) ** 0.5 if allowed else float("inf")
                yield self._violation(
                    last, f"all releases so far move by {ratio:.4g} times what the accountant counts", ratio
                )
                return


def are_equal(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """True if both have it, to the bit; what other clients keep and change to rounding."""
    if name not in first or name not in second:
        return False
    one, other = first[name], second[name]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if name.startswith(("kept ", CHANGES_OF_OTHERS)):
        if one.shape != other.shape:
            return False
        return torch.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    return one.shape == other.shape and one.dtype == other.dtype and _bits(one) == _bits(other)


def _bits(value: Tensor) -> bytes:
    return value.detach().contiguous().numpy(force=True).tobytes()
