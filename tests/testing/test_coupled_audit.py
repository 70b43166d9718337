"""The coupled audit of every accepted combination, and of faults that it must find."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations

import pytest

from fedcore import ExperimentSpec
from fedcore.testing.coupled_audit import CoupledAudit, Violation, canaries
from tests.testing import test_combinations as combined
from tests.testing.test_combinations import FAMILIES, Row

LEFT_OUT = {"privacy", "resumed after", "asynchrony"}
"""`asynchrony` is refused; checkpoints are compared in every round."""
MECHANISMS = tuple(FAMILIES["privacy"])
QUICK_PARTS, SLOW_PARTS = 8, 8


def covering(mechanism: str, strength: int) -> Iterator[Row]:
    """Rows that contain the mechanism beside each set of `strength` kinds that is not refused beside it."""
    start = dict(combined.with_needs({"privacy": mechanism}))
    accepted = {
        family: [kind for kind in options if not combined.refusal({**start, family: kind})]
        for family, options in FAMILIES.items()
        if family not in LEFT_OUT
    }
    missing = {
        frozenset(zip(families, kinds, strict=True))
        for families in combinations(accepted, strength)
        for kinds in _product([accepted[family] for family in families])
    }
    while missing:
        seed = min(missing, key=sorted)
        missing.discard(seed)
        row = start | dict(sorted(seed))
        if combined.refusal(row):
            continue
        for family in [name for name in accepted if name not in dict(seed)]:
            others = list(combinations(sorted(row.items()), strength - 1))
            gains = {
                kind: sum(frozenset((*other, (family, kind))) in missing for other in others)
                for kind in accepted[family]
            }
            for kind in sorted(gains, key=gains.__getitem__, reverse=True)[: combined.TRIES]:
                if gains[kind] and not combined.refusal(row | {family: kind}):
                    row[family] = kind
                    break
        for covered in combinations(sorted(row.items()), strength):
            missing.discard(frozenset(covered))
        yield row


def _product(options: list[list[str]]) -> Iterator[tuple[str, ...]]:
    from itertools import product

    return product(*options)


@cache
def rows(strength: int) -> list[Row]:
    return [row for mechanism in MECHANISMS for row in covering(mechanism, strength)]
