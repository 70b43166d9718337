"""Arms of all experiments: their settings, and the queries behind tables of arms.

Filters and orders are values, not text: `api.arms` reads them from what users write. They compare as
numbers what is a number and as text what is text; what an arm does not have is never equal, less or
greater.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    Text,
    and_,
    case,
    cast,
    delete,
    false,
    func,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import curves, sharing
from fedcore.platform.store.records import RecordPage, arm_rows, insert_into
from fedcore.platform.store.tables import (
    ArmRecord,
    ExperimentRecord,
    RunRecord,
)
from fedcore.spec import Arm, ExperimentSpec
from fedcore.spec.parameters import Parameters, Value, parameters_of
from fedcore.statistics.poor_runs import WarningKind


def replace(session: Session, experiment_id: str, spec: ExperimentSpec, arms: Sequence[Arm]) -> None:
    """Store the settings of some arms anew, which an extension or a study has changed."""
    if not arms:
        return
    parameters, first = parameters_of(spec, arms), arms[0].index
    here = ArmRecord.experiment_id == experiment_id, ArmRecord.arm.between(first, arms[-1].index)
    session.execute(delete(ArmRecord).where(*here))
    session.execute(insert_into(ArmRecord), arm_rows(experiment_id, parameters.arms, first))
    session.execute(
        update(ExperimentRecord)
        .where(ExperimentRecord.id == experiment_id)
        .values(parameters=parameters.common)
    )


FixedName = Literal[
    "experiment_id",
    "experiment_name",
    "arm",
    "name",
    "status",
    "seeds",
    "rounds_done",
    "rounds_total",
    "diverged",
    "stopped",
    "seconds",
    "megabytes_sent",
]


class Fixed(NamedTuple):
    """A column that every arm has; the last two are means over the seeds that have rounds."""

    name: FixedName


class Setting(NamedTuple):
    """A setting, by dotted path."""

    path: str


class MeasureFigure(NamedTuple):
    """A figure of a measure, the mean over the seeds that have it."""

    measure: str
    which: Literal["low", "high", "final"]


Column: TypeAlias = Fixed | Setting | MeasureFigure


class ColumnComparison(NamedTuple):
    """A column compared with a value."""

    column: Column
    operator: Literal["=", "!=", "<", "<=", ">", ">=", "~"]
    """`~`: the text contains the value, in upper or lower case."""
    value: Value


class IsOneOf(NamedTuple):
    """A column equal to one of some values."""

    column: Column
    values: "Sequence[Value]"


class IsAbsent(NamedTuple):
    """A column that the arm does not have."""

    column: Column


class Not(NamedTuple):
    """A condition that does not hold."""

    condition: "Condition"


class All(NamedTuple):
    """Conditions that all hold."""

    conditions: "Sequence[Condition]"


class AnyOf(NamedTuple):
    """Conditions of which one holds."""

    conditions: "Sequence[Condition]"


Condition: TypeAlias = ColumnComparison | IsOneOf | IsAbsent | Not | All | AnyOf


class Order(NamedTuple):
    """A column to sort by; arms that do not have it come last."""

    column: Column
    descending: bool


class ArmFilter(NamedTuple):
    """Which arms are wanted; None: any."""

    seen_by: str | None = None
    """An owner who sees them: their own arms, and arms that others share with them."""
    experiments: Sequence[str] | None = None
    """None: all but archived ones."""
    condition: Condition | None = None


class SeedFigures(NamedTuple):
    """One run of an arm."""

    run_id: str
    seed: int
    status: Status
    seconds: float | None
    """Computing time of the run; None if it has no rounds."""
    megabytes_sent: float | None
    figures: Mapping[MeasureFigure, float | None]


class ArmEntry(NamedTuple):
    """One arm of a table."""

    experiment_id: str
    experiment_name: str
    created_at: datetime
    arm: int
    name: str
    status: Status
    rounds_done: int
    rounds_total: int
    diverged: int
    stopped: int
    common: Parameters
    """Settings that all arms of the experiment share."""
    own: Parameters
    """The other settings."""
    seeds: Sequence[SeedFigures]

    @property
    def parameters(self) -> Parameters:
        """Settings of the arm, shared ones included."""
        return {**self.own, **self.common}


def page(
    session: Session,
    filters: ArmFilter,
    figures: Sequence[MeasureFigure] = (),
    order: Sequence[Order] = (),
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> RecordPage[ArmEntry]:
    """Arms that are wanted, by `order`, then newest experiment first, with these figures of each seed.

    Raises LookupError where the arm of the cursor is gone.
    """
    dialect = session.get_bind().dialect.name
    keys = [key for one in order for key in _keys(one, dialect)]
    keys += [_Key(_FIXED["experiment_id"], descending=True), _Key(_FIXED["arm"])]
    query = _rows_of(filters).add_columns(
        *(key.value.label(f"key_{place}") for place, key in enumerate(keys))
    )
    found = _narrowed(query, filters, session)
    if cursor is not None:
        id, _, arm = cursor.rpartition(":")
        known = arm.isdecimal() and len(arm) < len("2147483648")
        here = query.where(RunRecord.experiment_id == id, RunRecord.arm == int(arm if known else -1))
        last = session.execute(here).first()
        if last is None:
            raise LookupError(cursor)
        found = found.having(_after(keys, last[-len(keys) :]))
    # One more than wanted tells whether there is a next page.
    rows = session.execute(found.order_by(*(key.by for key in keys)).limit(limit + 1)).all()
    shown = rows[:limit]
    following = f"{shown[-1].experiment_id}:{shown[-1].arm}" if len(rows) > limit else None
    return RecordPage(_entries(session, shown, figures), following)


class ArmTable(NamedTuple):
    """Arms as columns, which thousands of rows would name each: a list has a value for each arm, or for
    each run in their order.
    """

    experiments: dict[str, str]
    """Names by id, in the order of the arms."""
    arms: dict[str, list[Any]]
    """Columns with an entry for each arm: the place of its `experiment`, `arm`, `name`, `status`,
    and the number of its `runs`.
    """
    shared: Parameters
    """Settings of all arms."""
    settings: dict[str, list[Value | None]]
    """Settings in which arms differ, by arm; None: absent."""
    runs: dict[str, list[Any]]
    """Columns with an entry for each run: `id`, `seed`, `status` and the kind of its `warning`,
    None: there is none.
    """
    seconds: list[float | None]
    """Computing time of each run; None if it has no rounds."""
    megabytes_sent: list[float | None]
    """Megabytes that each run sent."""
    figures: list[list[float | None]]
    """Figures, each with its value for every run."""
    more: bool
    """True if there are further arms."""


def table(session: Session, filters: ArmFilter, figures: Sequence[MeasureFigure], *, limit: int) -> ArmTable:
    """The newest arms that are wanted, with their runs and these figures of each."""
    query = _narrowed(_rows_of(filters), filters, session)
    columns = [_FIXED[name].label(name) for name in ("experiment_id", "arm", "name", "status")]
    newest = query.with_only_columns(*columns, ArmRecord.parameters).order_by(
        _FIXED["experiment_id"].desc(), _FIXED["arm"]
    )
    rows = session.execute(newest.limit(limit + 1)).all()
    arms = rows[:limit]
    ids = list(dict.fromkeys(row.experiment_id for row in arms))
    common, about = _common(session, ids), _about(session, ids)
    places = {id: place for place, id in enumerate(ids)}
    runs = _runs(session, ids, {row.arm for row in arms}, figures)
    members = [runs[row.experiment_id, row.arm] for row in arms]
    found = [list(column) for column in zip(*(run for some in members for run in some), strict=True)]
    columns_of_runs = found or [[] for _ in range(6 + len(figures))]
    run_ids, seeds, statuses, warnings, seconds, megabytes, *values = columns_of_runs
    shared, settings = _setting_columns([(common[row.experiment_id], row.parameters or {}) for row in arms])
    return ArmTable(
        experiments={id: about[id].name for id in ids},
        arms={
            "experiment": [places[row.experiment_id] for row in arms],
            "arm": [row.arm for row in arms],
            "name": [row.name for row in arms],
            "status": [row.status for row in arms],
            "runs": [len(some) for some in members],
        },
        shared=shared,
        settings=settings,
        runs={"id": run_ids, "seed": seeds, "status": statuses, "warning": warnings},
        seconds=seconds,
        megabytes_sent=megabytes,
        figures=values,
        more=len(rows) > limit,
    )


def _setting_columns(
    arms: Sequence[tuple[Parameters, Parameters]],
) -> tuple[Parameters, dict[str, list[Value | None]]]:
    """Settings that all arms share, and columns of the others; an arm has the settings of its
    experiment and its own.
    """
    of_experiments = {id(common): common for common, _ in arms}.values()
    own = {path for _, settings in arms for path in settings}
    shared = dict(next(iter(of_experiments), {}))
    for common in of_experiments:
        shared = {path: value for path, value in shared.items() if _same(common.get(path), value)}
    columns: dict[str, list[Value | None]] = {}
    for path in sorted(own.union(*of_experiments) - (shared.keys() - own)):
        values = [mine.get(path, common.get(path)) for common, mine in arms]
        if (first := values[0]) is not None and all(_same(first, value) for value in values):
            shared[path] = first
        else:
            shared.pop(path, None)
            columns[path] = values
    return shared, columns


def _same(one: Value | None, other: Value | None) -> bool:
    # By type, too: True is 1 in Python.
    return one == other and type(one) is type(other)


def matching(session: Session, filters: ArmFilter) -> dict[str, list[int]]:
    """The arms that are wanted, by experiment."""
    query = _narrowed(_rows_of(filters), filters, session)
    found: dict[str, list[int]] = {}
    for id, arm in session.execute(query.with_only_columns(_FIXED["experiment_id"], _FIXED["arm"])).all():
        found.setdefault(id, []).append(arm)
    return found


def _narrowed(query: Select[Any], filters: ArmFilter, session: Session) -> Select[Any]:
    """The rows that fulfil the condition."""
    condition, dialect = filters.condition, session.get_bind().dialect.name
    if condition is None:
        return query
    for part in condition.conditions if isinstance(condition, All) else [condition]:
        # What all runs of an arm have in common leaves fewer of them to be grouped.
        narrow = query.having if _is_of_group(part) else query.where
        query = narrow(_holds(part, dialect))
    return query


def _is_of_group(condition: Condition) -> bool:
    """True if a condition is about figures over the runs of an arm."""
    match condition:
        case All(conditions) | AnyOf(conditions):
            return any(map(_is_of_group, conditions))
        case Not(inner):
            return _is_of_group(inner)
        case ColumnComparison(column, _, _) | IsOneOf(column, _) | IsAbsent(column):
            return not isinstance(column, Setting) and column not in _OF_EXPERIMENT


class StoredParameters(NamedTuple):
    """Settings of the arms of an experiment, by dotted path."""

    common: Parameters
    """Settings that all arms share."""
    arms: Mapping[int, Parameters]
    """The other settings, by arm."""

    def of(self, arm: int) -> Parameters:
        """All settings of an arm."""
        return {**self.common, **self.arms.get(arm, {})}


def settings_of(session: Session, experiment_ids: Sequence[str]) -> dict[str, StoredParameters]:
    """Settings of the arms of some experiments, by experiment."""
    own = select(ArmRecord.experiment_id, ArmRecord.arm, ArmRecord.parameters).where(
        ArmRecord.experiment_id.in_(experiment_ids)
    )
    arms: dict[str, dict[int, Parameters]] = {id: {} for id in experiment_ids}
    for id, arm, parameters in session.execute(own.order_by(ArmRecord.arm)).all():
        arms[id][arm] = parameters
    return {id: StoredParameters(common, arms[id]) for id, common in _common(session, experiment_ids).items()}


def _common(session: Session, experiment_ids: Sequence[str]) -> dict[str, Parameters]:
    query = select(ExperimentRecord.id, ExperimentRecord.parameters).where(
        ExperimentRecord.id.in_(experiment_ids)
    )
    return {id: parameters or {} for id, parameters in session.execute(query).all()}


def _entries(session: Session, rows: Sequence[Any], figures: Sequence[MeasureFigure]) -> list[ArmEntry]:
    ids = list(dict.fromkeys(row.experiment_id for row in rows))
    common, about = _common(session, ids), _about(session, ids)
    runs = _runs(session, ids, {row.arm for row in rows}, figures)
    return [
        ArmEntry(
            row.experiment_id,
            about[row.experiment_id].name,
            about[row.experiment_id].created_at,
            row.arm,
            row.name,
            Status(row.status),
            row.rounds_done,
            row.rounds_total,
            row.diverged,
            row.stopped,
            common[row.experiment_id],
            row.parameters or {},
            [_seed(run, figures) for run in runs[row.experiment_id, row.arm]],
        )
        for row in rows
    ]


def _about(session: Session, experiment_ids: Sequence[str]) -> dict[str, Any]:
    """Name and time of submission by id."""
    query = select(ExperimentRecord.id, ExperimentRecord.name, ExperimentRecord.created_at)
    return {row.id: row for row in session.execute(query.where(ExperimentRecord.id.in_(experiment_ids)))}


def _runs(
    session: Session, experiment_ids: Sequence[str], arms: set[int], figures: Sequence[MeasureFigure]
) -> dict[tuple[str, int], list[Sequence[Any]]]:
    """Id, seed, status, warning, seconds, megabytes and figures of each run, by experiment and arm."""
    first, last = min(arms, default=0), max(arms, default=0)
    # The database takes longer for a list of thousands than for a few rows too many.
    among = RunRecord.arm.between(first, last) if last - first < 2 * len(arms) else RunRecord.arm.in_(arms)
    columns = RunRecord.experiment_id, RunRecord.arm, RunRecord.id, RunRecord.seed, RunRecord.status
    query = (
        select(*columns, _WARNING, _SECONDS, _MEGABYTES, *map(_figure, figures))
        .where(RunRecord.experiment_id.in_(experiment_ids), among)
        .order_by(RunRecord.id)
    )
    found: dict[tuple[str, int], list[Sequence[Any]]] = {}
    for id, arm, *run in session.execute(query).all():
        found.setdefault((id, arm), []).append(run)
    return found


def seeds_of(
    session: Session,
    arms: Mapping[str, set[int]],
    figures: Sequence[MeasureFigure],
    seen_by: str | None = None,
) -> dict[tuple[str, int], list[SeedFigures]]:
    """The runs of arms, which are given by experiment, with these figures; without those of experiments
    that `seen_by` does not see.
    """
    seen = sharing.visible_to(ExperimentRecord, seen_by)
    ids = session.scalars(select(ExperimentRecord.id).where(ExperimentRecord.id.in_(arms), seen)).all()
    found = _runs(session, ids, set().union(*arms.values()), figures)
    return {place: [_seed(run, figures) for run in runs] for place, runs in found.items()}


def _seed(run: Sequence[Any], figures: Sequence[MeasureFigure]) -> SeedFigures:
    run_id, seed, status, _, seconds, megabytes, *values = run
    return SeedFigures(run_id, seed, status, seconds, megabytes, dict(zip(figures, values, strict=True)))


def _stored(measure: str, entry: str) -> ColumnElement[float]:
    # One path, not two steps: it is the same text on both databases, and PostgreSQL reads it once.
    place = (measure, curves.Figures._fields.index(entry))
    found: ColumnElement[float] = RunRecord.figures[place].as_float()
    return found


def _figure(figure: MeasureFigure) -> ColumnElement[Any]:
    if figure.which != "final":
        return _stored(figure.measure, figure.which)
    # Of a run that diverged, that of its last round, as `statistics.summary.final` says.
    valid = or_(RunRecord.diverged_round.is_(None), _stored(figure.measure, "last_round") == RunRecord.done)
    return case((valid, _stored(figure.measure, "last")))


_WARNING = case(
    (and_(RunRecord.status == Status.SUCCEEDED, RunRecord.diverged_round.is_not(None)), WarningKind.DIVERGED),
    (RunRecord.status == Status.SUCCEEDED, RunRecord.warning_kind),
)
_SECONDS = case((RunRecord.done > 0, RunRecord.seconds))
_MEGABYTES = (_stored("bytes_up", "total") + _stored("bytes_down", "total")) / 1e6
_ACTIVE = Status.QUEUED, Status.RUNNING, Status.AT_RUNG


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def _status() -> ColumnElement[str]:
    """Status of an arm from the statuses of its runs, by the rules of
    `lifecycle.derive_status`.
    """

    def some(*statuses: Status) -> ColumnElement[bool]:
        return _count(RunRecord.status.in_(statuses)) > 0

    started = func.max(RunRecord.started_at).is_not(None)
    return case(
        (and_(some(*_ACTIVE), started), Status.RUNNING.value),
        (some(*_ACTIVE), Status.QUEUED.value),
        *((some(status), status.value) for status in (Status.PAUSED, Status.CANCELLED, Status.FAILED)),
        else_=Status.SUCCEEDED.value,
    )


class _Typed(NamedTuple):
    """The value of a column in each type that it may have; absent in the others."""

    number: ColumnElement[float | None] | None = None
    text: ColumnElement[str | None] | None = None
    truth: ColumnElement[bool | None] | None = None

    @property
    def known(self) -> list[ColumnElement[Any]]:
        return [value for value in self if value is not None]

    @staticmethod
    def place(value: Value) -> int:
        """The place of the type of `value`."""
        return {str: 1, bool: 2}.get(type(value), 0)


class _Key(NamedTuple):
    """One of the expressions to sort by; what is absent comes last."""

    value: ColumnElement[Any]
    descending: bool = False

    @property
    def by(self) -> ColumnElement[Any]:
        ordered = self.value.desc() if self.descending else self.value.asc()
        return ordered.nulls_last()


_FIXED: dict[FixedName, Any] = {
    "experiment_id": ExperimentRecord.id,
    "experiment_name": ExperimentRecord.name,
    "arm": RunRecord.arm,
    "name": func.min(RunRecord.arm_name),
    "status": _status(),
    "seeds": func.count(),
    "rounds_done": func.sum(RunRecord.done),
    "rounds_total": func.sum(RunRecord.rounds),
    "diverged": _count(RunRecord.diverged_round.is_not(None)),
    "stopped": _count(RunRecord.stop_reason.is_not(None)),
    "seconds": func.avg(_SECONDS),
    "megabytes_sent": func.avg(_MEGABYTES),
}
_TEXTS = frozenset({"experiment_id", "experiment_name", "name", "status"})
_OF_EXPERIMENT = frozenset({Fixed("experiment_id"), Fixed("experiment_name"), Fixed("arm")})
"""Columns that are the same for all runs of an arm, besides settings."""
_SHOWN: tuple[FixedName, ...] = (
    "experiment_id",
    "arm",
    "name",
    "status",
    "rounds_done",
    "rounds_total",
    "diverged",
    "stopped",
)


def _rows_of(filters: ArmFilter) -> Select[Any]:
    """A row for each arm: its runs are grouped, so that conditions on figures are about their mean."""
    query = (
        select(*(_FIXED[name].label(name) for name in _SHOWN), ArmRecord.parameters)
        .join_from(RunRecord, ExperimentRecord, ExperimentRecord.id == RunRecord.experiment_id)
        .outerjoin(
            ArmRecord,
            and_(ArmRecord.experiment_id == RunRecord.experiment_id, ArmRecord.arm == RunRecord.arm),
        )
        # The keys of the other tables, on which their other columns depend.
        .group_by(ExperimentRecord.id, RunRecord.arm, ArmRecord.experiment_id, ArmRecord.arm)
    )
    query = query.where(sharing.visible_to(ExperimentRecord, filters.seen_by))
    if filters.experiments is None:
        query = query.where(not_(ExperimentRecord.archived))
    else:
        query = query.where(RunRecord.experiment_id.in_(filters.experiments))
    return query


def _typed(column: Column, dialect: str) -> _Typed:
    match column:
        case MeasureFigure():
            return _Typed(number=func.avg(_figure(column)))
        case Fixed(name):
            value = _FIXED[name]
            return _Typed(text=value) if name in _TEXTS else _Typed(number=value)
        case Setting(path):
            return _setting(path, dialect)


def _setting(path: str, dialect: str) -> _Typed:
    """A setting, taken from the arm or else from its experiment."""
    places = ArmRecord.parameters, ExperimentRecord.parameters
    if dialect == "postgresql":
        kind = func.coalesce(*(func.json_typeof(func.json_extract_path(place, path)) for place in places))
        text = func.coalesce(*(func.json_extract_path_text(place, path) for place in places))
        number, truth = kind == "number", case((kind == "boolean", text == "true"))
        return _Typed(cast(case((number, text)), Double), case((kind == "string", text)), truth)
    key = f'$."{path}"'
    kind = func.coalesce(*(func.json_type(place, key) for place in places))
    value = func.coalesce(*(func.json_extract(place, key) for place in places))
    number = case((kind.in_(("integer", "real")), cast(value, Double)))
    truth = case((kind.in_(("true", "false")), kind == "true"))
    return _Typed(number, case((kind == "text", cast(value, Text))), truth)


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _holds(condition: Condition, dialect: str) -> ColumnElement[bool]:
    """A condition that is true or false, never unknown, so that `Not` means what it says."""
    match condition:
        case All(conditions):
            return and_(true(), *(_holds(one, dialect) for one in conditions))
        case AnyOf(conditions):
            return or_(false(), *(_holds(one, dialect) for one in conditions))
        case Not(inner):
            return not_(_holds(inner, dialect))
        case IsAbsent(column):
            return and_(*(value.is_(None) for value in _typed(column, dialect).known))
        case IsOneOf(column, values):
            return _is_one_of(_typed(column, dialect), values)
        case ColumnComparison(column, name, value):
            return _compared(_typed(column, dialect), name, value)


def _is_one_of(typed: _Typed, values: Sequence[Value]) -> ColumnElement[bool]:
    """One IN for each type: building and compiling an expression for each value takes a millisecond."""
    by_place: dict[int, list[Value]] = {}
    for value in values:
        by_place.setdefault(typed.place(value), []).append(value)
    comparable = [(typed[place], some) for place, some in by_place.items()]
    found = [column.in_(some) for column, some in comparable if column is not None]
    return func.coalesce(or_(false(), *found), false())


def _compared(typed: _Typed, name: str, value: Value) -> ColumnElement[bool]:
    if name == "!=":
        present = or_(*(known.is_not(None) for known in typed.known))
        return and_(present, not_(_compared(typed, "=", value)))
    comparable = typed[typed.place(value)]
    if comparable is None:
        return false()
    if name == "~":
        found = comparable.icontains(str(value), autoescape=True)
    else:
        found = _OPERATORS[name](comparable, value)
    return func.coalesce(found, false())


def _keys(order: Order, dialect: str) -> Iterator[_Key]:
    typed = _typed(order.column, dialect)
    for value in (typed.number, typed.text):
        if value is not None:
            yield _Key(value, order.descending)
    if typed.truth is not None:
        yield _Key(case((typed.truth, 1), (not_(typed.truth), 0)), order.descending)


def _after(keys: Sequence[_Key], last: Sequence[Any]) -> ColumnElement[bool]:
    """The rows behind the one with these keys: equal in some first keys, and behind it in the next."""
    follows: list[ColumnElement[bool]] = []
    same: list[ColumnElement[bool]] = []
    for key, value in zip(keys, last, strict=True):
        if value is None:
            same.append(key.value.is_(None))
            continue
        behind = key.value < value if key.descending else key.value > value
        follows.append(and_(*same, or_(behind, key.value.is_(None))))
        same.append(key.value == value)
    return or_(false(), *follows)
