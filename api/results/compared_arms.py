"""Arms of any experiments side by side."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

from api.http.problems import InvalidDocumentError
from api.results.queries import arm_of, join_names, position_of
from api.results.summaries import changed_from
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Session, curves, experiments, runs
from fedcore.platform.store import arms as stored_settings
from fedcore.platform.store.records import resolve
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.spec import Arm, ExperimentSpec, stored_arms
from fedcore.statistics import summary
from fedcore.statistics.series import Series
from fedq.event_positions import Position
from fedq.results.curves import Window
from fedq.results.presentation import RunFigure
from fedq.results.selection import explain_selection
from fedq.results.summaries import TOTALS, Metric, arms_of, best_arms_of, by_arm, references_among
from fedq.schemas import Comparison, Member

MOST_ARMS = 500
"""Maximum number of arms in a comparison."""


@dataclass(frozen=True)
class ComparedArm:
    """An arm that is compared."""

    experiment: ExperimentRecord
    arms: Callable[[], Sequence[Arm]]
    """The arms of its experiment, expanded once for all that are compared."""
    runs: Sequence[RunRecord]

    @property
    def arm(self) -> int:
        """Its index in its experiment."""
        return self.runs[0].arm

    @property
    def name(self) -> str:
        """Its name in its experiment."""
        return self.runs[0].arm_name

    @cached_property
    def spec(self) -> ExperimentSpec:
        """Its specification."""
        return self.arms()[self.arm].spec

    @cached_property
    def data(self) -> object:
        """The data set, without augmentation, which changes no test sample."""
        return self.spec.problem.dataset.model_dump(mode="json", exclude={"augmentation"})

    @cached_property
    def conditions(self) -> Sequence[object]:
        """Parts of the specification that must agree for a seed to mean the same random choices."""
        spec, systems = self.spec, self.spec.systems
        cohorts = spec.participation, systems.availability, spec.asynchrony
        return spec.problem.dataset, spec.problem.partition, spec.evaluation.validation, *cohorts

    def pairs_with(self, other: "ComparedArm", found: dict[str, Series]) -> bool:
        """Return whether it is compared with `other` seed by seed."""
        if self.experiment.id == other.experiment.id:
            return True
        mine, theirs = ({run.seed for run in one.runs if run.id in found} for one in (self, other))
        return len(mine & theirs) >= summary.LEAST_SEEDS and self.conditions == other.conditions

    def member(self, *, paired: bool) -> Member:
        """Return its experiment and whether it is paired."""
        record = self.experiment
        return Member(
            experiment_id=record.id,
            experiment_name=record.name,
            status=record.status,
            arm=self.arm,
            paired=paired,
        )


def compare(
    database: Database,
    principal: Principal,
    wanted: Sequence[str],
    metrics: Sequence[Metric],
    window: Window,
    baseline: int | None = None,
    since: str | None = None,
    by: RunFigure = "final",
) -> Comparison:
    """Return the comparison, with the curves from a position on, and the arms that may be the best by a
    figure.

    Raises ResourceNotFoundError and InvalidDocumentError.
    """
    with database.reading() as session:
        chosen = gather(session, principal, wanted)
        if baseline is not None and baseline >= len(chosen):
            raise InvalidDocumentError.at(
                "?baseline", f"must be less than {len(chosen)}, the number of arms, not {baseline}"
            )
        found = curves.of_runs(session, [run.id for one in chosen for run in one.runs], *metrics, *TOTALS)
        settings = stored_settings.settings_of(session, list({one.experiment.id for one in chosen}))
    parameters = [settings[one.experiment.id].of(one.arm) for one in chosen]
    references = references_among([of_arm.get("algorithm.kind") for of_arm in parameters])
    first = chosen[baseline or 0]
    comparable = [one.data == first.data and one.pairs_with(first, found) for one in chosen]
    members = [one.runs for one in chosen]
    # By id, so that runs of seeds and arms that are added come last.
    every = sorted((run for some in members for run in some), key=lambda run: run.id)
    starts = None
    if since is not None:
        starts = changed_from(members, every, position_of(since, len(every), "?since"))
    arms = arms_of(members, found, metrics, window, starts, references)
    names = _names(chosen)
    return Comparison(
        name=" and ".join(dict.fromkeys(one.experiment.name for one in chosen)),
        confidence=summary.CONFIDENCE,
        position=str(Position(None, [None] * len(every), [run.done for run in every])),
        arms=[
            arm.model_copy(update={"index": place, "name": names[place], "parameters": parameters[place]})
            for place, arm in enumerate(arms)
        ],
        best_arms=best_arms_of(
            members,
            found,
            metrics,
            by,
            baseline,
            comparable,
            names,
            references=references,
        ),
        selection=explain_selection([one.experiment.spec for one in chosen], found.values()),
        members=[one.member(paired=comparable[place]) for place, one in enumerate(chosen)],
        pairing=_pairing([names[place] for place, same in enumerate(comparable) if not same], len(chosen)),
    )


def gather(session: Session, principal: Principal, wanted: Iterable[str]) -> list[ComparedArm]:
    """Return the requested arms, each once, in that order.

    Raises ResourceNotFoundError and InvalidDocumentError.
    """
    chosen: dict[tuple[str, int], ComparedArm] = {}
    arms: dict[str, dict[int, ComparedArm]] = {}
    for entry in wanted:
        reference, _, arm = entry.partition(":")
        id = resolve(session, ExperimentRecord, reference, principal.sees, principal.owner)
        if id not in arms:
            record = experiments.find(session, id, principal.sees)
            expanded = cache(partial(stored_arms, record.spec))
            arms[id] = {
                index: ComparedArm(record, expanded, members)
                for index, members in by_arm(runs.of_experiment(session, id)).items()
            }
        named = {one.name: index for index, one in arms[id].items()}
        for one in [arms[id][arm_of(named, arm, "?arm")]] if arm else arms[id].values():
            chosen.setdefault((id, one.arm), one)
    if len(chosen) > MOST_ARMS:
        raise InvalidDocumentError.at("?arm", f"must be at most {MOST_ARMS} arms, not {len(chosen)}")
    return list(chosen.values())


def _names(chosen: Sequence[ComparedArm]) -> list[str]:
    """Return the arms' names, with the names of their experiments if there are several, and with
    their ids if names are equal.
    """
    ids: dict[str, set[str]] = {}
    for one in chosen:
        ids.setdefault(one.experiment.name, set()).add(one.experiment.id)
    if len(ids) == 1 and len({one.experiment.id for one in chosen}) == 1:
        return [one.name for one in chosen]
    return [
        f"{one.experiment.name}{f' ({one.experiment.id})' if len(ids[one.experiment.name]) > 1 else ''}:"
        f" {one.name}"
        for one in chosen
    ]


def _pairing(apart: Sequence[str], arms: int) -> str:
    """Say which arms are compared, and name those that are not."""
    if not apart:
        return "All arms are compared, seed by seed."
    shared = "data set, partition, validation samples, participation"
    lacking = f"{shared} and at least {summary.LEAST_SEEDS} seeds"
    if len(apart) == arms - 1:
        return f"No arms are compared: they do not share {lacking}."
    return f"Arms are compared seed by seed, except those that do not share {lacking}: {join_names(apart)}."
