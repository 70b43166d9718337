"""What `POST /v1/experiments` takes: a specification, or a preset with overrides."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from api.bodies.descriptions import describe
from api.bodies.documents import validate
from api.problems import InvalidRequestError
from fedcore import presets
from fedcore.errors import PresetNotFoundError, SpecificationError
from fedcore.platform.store import Database
from fedcore.platform.version import commit, release
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedcore.spec.limits import ExperimentLimits, refuse_excess
from fedcore.spec.model_allowlist import check_allowed_models
from fedq.schemas import Flaw


class PresetSubmission(BaseModel):
    """A preset by name, with changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    preset: str
    """Its name, as `GET /v1/presets` lists it."""
    overrides: dict[str, Any] = {}
    """Merged into the preset's specification: blocks merge, null removes, anything else replaces; a block whose `kind`
    changes is replaced whole."""


def specification(document: Any, database: Database, settings: Settings, owner: str | None = None) -> tuple[ExperimentSpec, dict[str, Any]]:
    """The specification that `document` submits, its uploaded data sets described, and where it came from, for the provenance.

    It may name the data sets of `owner`, or of anybody where none is given.

    Raises InvalidRequestError or SpecificationError with pointers into `document`, also for a model by an import path that none of
    the patterns in `settings` covers (it would run on a worker, and is not imported here), and for what is larger than they allow.
    """
    if not (isinstance(document, dict) and "preset" in document):
        return _validated(document, database, settings, owner), code()
    submission = validate(PresetSubmission, document)
    try:
        preset = presets.load(submission.preset)
    except PresetNotFoundError as error:
        raise InvalidRequestError([Flaw(pointer="/preset", detail=str(error))]) from error
    spec = _validated(presets.override(preset.spec, submission.overrides), database, settings, owner, at="/overrides")
    return spec, code() | {"preset": preset.name, "preset_version": preset.version, "overrides": submission.overrides}


def code() -> dict[str, Any]:
    """Which FedQ this is."""
    return {"fedq": release(), "commit": commit()}


def _validated(document: Any, database: Database, settings: Settings, owner: str | None, at: str = "") -> ExperimentSpec:
    spec = validate(ExperimentSpec, describe(document, database, owner, at), at)
    try:
        check_allowed_models(spec, settings.models_allowed)
        refuse_excess(spec, ExperimentLimits(settings.max_runs, settings.max_rounds, settings.max_parameters))
    except SpecificationError as error:
        raise SpecificationError(at + error.pointer, error.detail) from error
    return spec
