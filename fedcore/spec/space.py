"""`search.space`: what a study may search over, and the specifications of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedcore.errors import SpecificationError
from fedcore.ranges import Choice
from fedcore.spec.sweep import assign_values
from fedcore.spec.validation import explain_error, place_of

if TYPE_CHECKING:
    from fedcore.spec.experiment import ExperimentSpec
    from fedcore.spec.search import Study

Settings = dict[str, Any]
"""Values by dotted path."""

HELD_FIXED = {
    "problem": "trials are compared on one problem; compare problems with `sweep`",
    "rounds": "all trials must have the same rounds",
    "evaluation": "all trials must have the same evaluations",
    "early_stopping": "all trials must have the same rounds",
    **dict.fromkeys(
        ("name", "description", "tags", "seeds", "sweep", "search", "execution", "code"),
        "it is common to all trials",
    ),
}
"""Fields of a specification that no trial changes, and why."""


def check_space(search: Study, spec: ExperimentSpec) -> None:
    """Raise SpecificationError where the space of a study does not fit its specification."""
    for path in search.space:
        top, leaf = path.partition(".")[0], path.rpartition(".")[2]
        pointer = f"/search/space/{path}"
        if top in HELD_FIXED:
            raise SpecificationError(pointer, f"cannot be searched: {HELD_FIXED[top]}")
        if leaf == "kind":
            raise SpecificationError(pointer, "cannot be searched: kinds have other fields; sweep over it")
    if search.sampler == "cmaes":
        _check_continuous(search)
    for place, settings in enumerate(search.proposed):
        _check_proposed(search, place, settings)
    for _ in list_extremes(search, spec):
        pass


def list_extremes(search: Study, spec: ExperimentSpec) -> Iterator[ExperimentSpec]:
    """Yield the specification with each end of each range in turn, the other fields as they are.

    Raises SpecificationError, with a pointer to the range, for one that is not valid.
    """
    document = base_document(spec)
    for path, searched in search.space.items():
        for value in searched.ends:
            pointer = f"/search/space/{path}"
            try:
                yield trial_spec(type(spec), document, {path: value})
            except SpecificationError as error:
                raise SpecificationError(
                    pointer, f"{value!r} is invalid: {error.detail} ({error.pointer}); change the range"
                ) from error


def base_document(spec: ExperimentSpec) -> Settings:
    """The specification of a trial before its settings; blocks that no trial changes are shared."""
    assert spec.search is not None
    assert spec.search.kind == "study"
    changed = {path.partition(".")[0] for path in spec.search.space}
    fields = {name: getattr(spec, name) for name in type(spec).model_fields}
    document = fields | spec.model_dump(mode="json", include=changed)
    return {name: value for name, value in document.items() if name not in ("sweep", "search")}


def trial_spec(
    form: type[ExperimentSpec],
    document: Mapping[str, Any],
    settings: Mapping[str, Any],
    context: dict[str, bool] | None = None,
) -> ExperimentSpec:
    """The specification of a trial with these settings; raises SpecificationError if they are not
    valid together.
    """
    trial = assign_values(document, settings, "/search/space")
    try:
        return form.model_validate(trial, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecificationError(place_of(first, trial), explain_error(first, form)) from error


def find_conflict(spec: ExperimentSpec, settings: Settings) -> str | None:
    """Why a trial with these settings cannot run; None if they are valid together."""
    try:
        trial_spec(type(spec), base_document(spec), settings)
    except SpecificationError as error:
        return f"these settings are not valid together: {error.detail} ({error.pointer})"
    return None


def _check_continuous(search: Study) -> None:
    for path, searched in search.space.items():
        if isinstance(searched, Choice):
            raise SpecificationError(
                f"/search/space/{path}", "cmaes searches numbers only; use a range, or the sampler tpe"
            )
    if len(search.space) < 2:
        raise SpecificationError(
            "/search/space", "cmaes needs at least two fields; add one, or use the sampler tpe"
        )


def _check_proposed(search: Study, place: int, settings: Mapping[str, Any]) -> None:
    pointer = f"/search/proposed/{place}"
    if settings.keys() != search.space.keys():
        wanted = ", ".join(search.space)
        raise SpecificationError(pointer, f"must have a value for each field of `space`: {wanted}")
    for path, value in settings.items():
        if not search.space[path].contains(value):
            raise SpecificationError(f"{pointer}/{path}", f"{value!r} is not in its range in `space`")
