"""Comparison of a reproduction with its original: first differences and possible causes."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedcore.platform.provenance import BEST_MODEL, ENGINE_CHOICE, MODEL_SHA256
from fedcore.platform.store import ENDED, Session, Status, reproductions, runs
from fedcore.platform.store.reproductions import Pair
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.spec.digest import specification_sha256
from fedq.schemas import MadeOtherwise, Reproduction, ReproductionOutcome, RunDifference

UNSUCCESSFUL = (Status.FAILED, Status.CANCELLED)
TOLD = 1_000
"""Maximum number of runs whose differences are listed."""


def compare_with_original(
    session: Session, here: ExperimentRecord, original: ExperimentRecord
) -> Reproduction:
    """Compare a reproduction with its original, as far as both are done."""
    pairs = reproductions.pairs(session, here.id, original.id)
    found = [difference for pair in pairs if (difference := _difference(session, pair)) is not None]
    everything = len(runs.of_experiment(session, here.id)) + len(runs.of_experiment(session, original.id))
    return Reproduction(
        experiment_id=here.id,
        reproduces=original.id,
        outcome=_outcome(pairs, found),
        error=here.error,
        runs=len(pairs),
        unmatched=everything - 2 * len(pairs),
        rounds=sum(min(run.done for run in pair) for pair in pairs),
        models=sum(_models(pair) is not None for pair in pairs),
        differing=found[:TOLD],
        made_otherwise=_made_otherwise(
            pairs, specification_sha256(original.spec), specification_sha256(here.spec)
        ),
    )


def _outcome(pairs: Sequence[Pair], found: Sequence[RunDifference]) -> ReproductionOutcome:
    # A run that did not succeed says nothing about its numbers.
    unsuccessful = [one for one in found if one.measure == "status" and one.here in UNSUCCESSFUL]
    if len(unsuccessful) < len(found):
        return ReproductionOutcome.DIFFERENT
    if not all(run.status in ENDED for pair in pairs for run in pair):
        return ReproductionOutcome.PENDING
    return ReproductionOutcome.FAILED if unsuccessful else ReproductionOutcome.IDENTICAL


def _difference(session: Session, pair: Pair) -> RunDifference | None:
    row = reproductions.first_difference(session, pair)
    if row is not None:
        return _difference_at(pair, row.round, row.measure, row.original, row.here)
    original, here = pair
    if here.status in ENDED and here.status is not original.status:
        return _difference_at(pair, here.done, "status", original.status, here.status)
    if here.status in ENDED and original.done != here.done:
        return _difference_at(pair, min(original.done, here.done) + 1, "rounds", original.done, here.done)
    models = _models(pair)
    return (
        None
        if models is None or models[0] == models[1]
        else _difference_at(pair, here.done, MODEL_SHA256, *models)
    )


def _models(pair: Pair) -> tuple[str, str] | None:
    """Return the digests of the final models; None if a run has none or is unfinished."""
    original, here = (run.provenance.get(MODEL_SHA256) if run.status in ENDED else None for run in pair)
    return None if original is None or here is None else (original, here)


def _difference_at(
    pair: Pair, round: int, measure: str, original: float | str | None, here: float | str | None
) -> RunDifference:
    return RunDifference(
        arm=pair.here.arm,
        arm_name=pair.here.arm_name,
        seed=pair.here.seed,
        run_id=pair.here.id,
        original_run_id=pair.original.id,
        round=round,
        measure=measure,
        original=original,
        here=here,
        relative=relative(original, here),
    )


def relative(original: object, here: object) -> float | None:
    """Return the difference of two numbers relative to the larger; None for other values."""
    if not (isinstance(original, int | float) and isinstance(here, int | float)):
        return None
    largest = max(abs(original), abs(here))
    # Halved, so that no difference of two numbers is infinite.
    return 2 * abs(original / largest / 2 - here / largest / 2)


def _made_otherwise(pairs: Sequence[Pair], *specifications: str) -> list[MadeOtherwise]:
    """Return the differences in provenance between started runs and their originals."""
    found: Counter[tuple[str, str, str]] = Counter()
    if len(set(specifications)) > 1:
        found["specification_sha256", *map(json.dumps, specifications)] = len(pairs)  # type: ignore[index]
    for pair in pairs:
        if pair.here.done:
            original, here = (dict(_leaves(run.provenance)) for run in pair)
            found.update(
                (what, original.get(what, "null"), value)
                for what, value in here.items()
                if value != original.get(what, "null")
            )
    return [
        MadeOtherwise(what=what, original=original, here=here, runs=count)
        for (what, original, here), count in found.items()
    ]


def _leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a provenance by dotted path, as JSON.

    How the engine was chosen, the digest of the model and the best model are left out: none of them
    causes a difference.
    """
    for name, value in document.items():
        if name in (BEST_MODEL, ENGINE_CHOICE, MODEL_SHA256):
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", json.dumps(value)
