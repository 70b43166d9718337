"""A specification with more rounds or more seeds, and whether what was played of it stands."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from fedcore.errors import SpecificationError, StateConflictError
from fedcore.spec.experiment import Arm, ExperimentSpec
from fedcore.spec.validation import detail_of

ANEW = "submit a new experiment instead"


def extend_spec(spec: ExperimentSpec, rounds: int | None, seeds: Sequence[int]) -> ExperimentSpec:
    """Return `spec` with `rounds` rounds and with the seeds of `seeds` that it lacks appended.

    The result equals `spec` if it has both already.

    Raises StateConflictError where it has more rounds already, or a search, and SpecificationError, with
    a pointer to `/rounds` or `/seeds`, where it would not be valid.
    """
    more = [seed for seed in seeds if seed not in spec.seeds]
    if rounds is not None and rounds < spec.rounds:
        raise StateConflictError(
            f"the experiment has {spec.rounds} rounds, which cannot be reduced to {rounds}"
        )
    if (rounds is None or rounds == spec.rounds) and not more:
        return spec
    if spec.search is not None:
        raise StateConflictError(f"the decisions of the search depend on rounds and seeds; {ANEW}")
    document = spec.model_dump(mode="json")
    longer = _checked({**document, "rounds": rounds or spec.rounds}, "/rounds")
    if any(arm.spec.rounds != longer.rounds for arm in longer.arms()):
        raise StateConflictError(f"the arms of the experiment have different numbers of rounds; {ANEW}")
    return (
        _checked({**document, "rounds": longer.rounds, "seeds": [*spec.seeds, *more]}, "/seeds")
        if more
        else longer
    )


def check_history_unchanged(before: ExperimentSpec, after: ExperimentSpec, done: Mapping[int, int]) -> None:
    """Raise StateConflictError where a round that was played would have been another one under `after`.

    `done` is the most by arm.
    """
    for short, long in zip(before.arms(), after.arms(), strict=True):
        reason = next(_differences(short, long, done.get(short.index, 0)), None)
        if reason:
            raise StateConflictError(
                f"completed rounds of arm {short.name!r} would differ with {long.spec.rounds} rounds:"
                f" {reason}; {ANEW}"
            )


def _differences(short: Arm, long: Arm, done: int) -> Iterator[str]:
    last, rounds, evaluation = short.spec.rounds, long.spec.rounds, short.spec.evaluation
    if reason := short.spec.local.lr_schedule.conflict(last, rounds, done):
        yield reason
    if done and short.spec.noise_multiplier != long.spec.noise_multiplier:
        yield "the noise multiplier that `privacy.target_epsilon` requires depends on the number of rounds"
    if last == done < rounds:
        if not evaluation.due(last, rounds):
            yield (
                f"round {last} was evaluated as the last one, and is not a multiple of evaluation.every,"
                f" {evaluation.every}"
            )
        if not evaluation.population_due(last, rounds):
            yield (
                f"population measures were evaluated in the last round, {last}, which is not a multiple of"
                " evaluation.population_every"
            )


def _checked(document: dict[str, object], pointer: str) -> ExperimentSpec:
    try:
        return ExperimentSpec.model_validate(document)
    except ValidationError as error:
        raise SpecificationError(pointer, detail_of(error.errors()[0])) from error
    except SpecificationError as error:
        raise SpecificationError(pointer, f"{error.detail} ({error.pointer} of the experiment)") from error
