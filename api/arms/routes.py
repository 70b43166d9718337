"""`/v1/arms`: arms of all experiments with their settings and results."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from api.arms import filters
from api.arms.service import arm_answer, fields_of
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, AppStateDep, Cursor, resolve_id
from api.http.parameters import NextLink
from api.http.problems import InvalidDocumentError, describe_errors
from fedcore.platform.store import arms, experiments
from fedcore.platform.store.arms import ArmFilter
from fedcore.platform.store.tables import ExperimentRecord
from fedq.schemas import ArmRow, Page

router = APIRouter(prefix="/v1/arms", tags=["results"])

Experiments = Annotated[
    list[Annotated[str, Query(max_length=200, pattern=NO_NUL)]] | None,
    Query(
        alias="experiment",
        max_length=100,
        description=(
            "Only arms of this experiment, by id, a unique beginning of it, name or `@last`; may be repeated"
            " (default: all)."
        ),
        examples=[["exp_01k9x3zq7rh2v8m4t6w0ybe5nd"]],
    ),
]
FilterText = Annotated[
    str | None,
    Query(
        alias="filter",
        max_length=filters.LONGEST,
        pattern=NO_NUL,
        description=(
            "Condition on settings, metrics and other columns, with `=`, `!=`, `<`, `<=`, `>`, `>=`, `~`"
            " (contains), `in (...)`, `is null`, `and`, `or`, `not` and parentheses; at most"
            f" {filters.MOST_COMPARISONS} comparisons."
        ),
        examples=[filters.EXAMPLE],
    ),
]
Sort = Annotated[
    str | None,
    Query(
        max_length=500,
        pattern=NO_NUL,
        description=(
            f"At most {filters.MOST_SORTED} columns to sort by, separated by commas, with `-` before a"
            " descending one (default: newest experiment first, then by index). Arms without a value come"
            " last."
        ),
        examples=["-test_accuracy.best,local.lr"],
    ),
]
FieldNames = Annotated[
    str | None,
    Query(
        max_length=2_000,
        pattern=NO_NUL,
        description=(
            "Settings and metrics to return, separated by commas (default: all settings and the headline"
            " metrics)."
        ),
        examples=["algorithm.kind,local.lr,test_accuracy.final"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of arms per page.")]


async def _selected(
    request: Request,
    principal: Reader,
    experiment: Experiments = None,
    filter: FilterText = None,  # noqa: A002 - its name in the query
) -> ArmFilter:
    ids = [await resolve_id(request, ExperimentRecord, one) for one in experiment or ()]
    return ArmFilter(principal.sees, ids or None, None if filter is None else filters.condition_of(filter))


Selected = Annotated[ArmFilter, Depends(_selected)]


@router.get("", responses=describe_errors(404, 422), summary="List arms")
async def read_arms(
    selected: Selected,
    principal: Reader,
    state: AppStateDep,
    link: NextLink,
    sort: Sort = None,
    fields: FieldNames = None,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[ArmRow]:
    """Return arms with settings, status, and best and final metrics over the seeds.

    An absent setting or metric is never equal, less or greater, nor unequal; `is null` finds it.
    """
    wanted = fields_of(None if fields is None else filters.columns_of(fields))
    order = filters.order_of(sort or "")

    def work() -> Page[ArmRow]:
        with state.database.reading() as session:
            for id in selected.experiments or ():
                experiments.find(session, id, selected.seen_by)
            try:
                page = arms.page(session, selected, wanted.figures, order, limit=limit, cursor=cursor)
            except LookupError:
                detail = f"must be the `next` of a page of these arms, not {cursor!r}; start again without it"
                raise InvalidDocumentError.at("?cursor", detail) from None
        return Page[ArmRow](items=[arm_answer(entry, wanted) for entry in page.items], next=link(page.next))

    return await state.reading_gate.run(principal.owner, work)
