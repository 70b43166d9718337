"""`/submit`: a form and a YAML editor that start from an example, a preset or an existing
experiment.
"""

import json
from functools import cache
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel

from api.http.authentication import Submitter
from api.http.dependencies import DatabaseDep, printable
from api.http.problems import InvalidDocumentError
from api.results.queries import read_results
from api.web.rendering import render_page
from fedcore import presets
from fedcore.data.uploaded import Uploaded
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, experiments
from fedcore.presets import PresetSpec
from fedcore.spec import ExperimentSpec, stored_spec, yaml_documents
from fedcore.spec.search import Study
from fedq.results.confirmation import CONFIRMED_ARMS, CONFIRMING_SEEDS, confirming_specification
from fedq.results.curves import Window
from fedq.results.summaries import metric_names

EXAMPLE = """\
# Omitted fields take their defaults.
name: my first experiment
problem:
  dataset: {kind: digits}
  partition: {kind: dirichlet, clients: 30, alpha: 0.1, min_samples: 5}
  model: {kind: mlp, hidden: [64]}
algorithm: {kind: fedavg}
local: {lr: 0.1, epochs: 5, batch_size: 10}
participation: {kind: uniform, clients_per_round: 10}
rounds: 50
seeds: [0, 1, 2]
# One arm per value or combination of values.
sweep:
  algorithm.kind: [fedavg, fedprox, scaffold]
"""

router = APIRouter(include_in_schema=False)

Name = Annotated[
    str | None, Query(max_length=200), AfterValidator(lambda name: None if name is None else printable(name))
]


class Start(NamedTuple):
    """Initial content of the page."""

    text: str
    origin: str | None = None
    """Origin, in words."""
    preset: PresetSpec | None = None


class PresetOption(NamedTuple):
    """A preset to start from."""

    name: str
    title: str
    sheet: str
    runs: int
    rounds: int
    """Rounds of each run."""
    words: str
    """Text that the search box matches, in lower case."""


@router.get("/submit")
def write(
    request: Request,
    principal: Submitter,
    database: DatabaseDep,
    preset: Name = None,
    experiment: Annotated[Name, Query(alias="from", max_length=200)] = None,
    confirm: Annotated[Name, Query(max_length=200)] = None,
) -> Response:
    """Return the page; it checks and submits through `POST /v1/experiments` only. With `confirm`, it starts
    from the leading arms of an experiment on fresh seeds.
    """
    if confirm is not None:
        start = _confirmation(database, principal, confirm)
    else:
        start = _start(database, principal.sees, preset, experiment)
    known = start.preset and {"name": start.preset.name, "specification": start.preset.spec}
    return render_page(
        request,
        "submit.html",
        text=start.text,
        origin=start.origin,
        preset=start.preset,
        preset_json=json.dumps(known) if known else "",
        presets=choices(),
    )


@cache
def choices() -> tuple[PresetOption, ...]:
    """Return all presets."""
    return tuple(_choice(presets.load(name)) for name in presets.names())


def _choice(preset: PresetSpec) -> PresetOption:
    spec = ExperimentSpec.model_validate(preset.spec)
    kinds = f"{spec.problem.dataset.kind} {spec.algorithm.kind}"
    words = f"{preset.name} {preset.title} {preset.source} {kinds}".lower()
    return PresetOption(
        preset.name, preset.title, preset.sheet, spec.arm_count * len(spec.seeds), spec.rounds, words
    )


def _start(database: Database, owner: str | None, preset: str | None, experiment: str | None) -> Start:
    """Raises PresetNotFoundError and ResourceNotFoundError."""
    if preset is not None:
        found = presets.load(preset)
        return Start(yaml_documents.dump(found.spec), f"preset {found.name}, version {found.version}", found)
    if experiment is not None:
        with database.reading() as session:
            record = experiments.find(session, experiment, owner)
            return Start(yaml_documents.dump(_brief(stored_spec(record.spec))), f"experiment {record.name}")
    return Start(EXAMPLE)


def _confirmation(database: Database, principal: Principal, experiment: str) -> Start:
    """Raises ResourceNotFoundError and InvalidDocumentError."""
    results = read_results(database, principal, experiment, metric_names(), Window(2))
    with database.reading() as session:
        record = experiments.find(session, experiment, principal.sees)
    try:
        document = confirming_specification(record.spec, results, CONFIRMED_ARMS, CONFIRMING_SEEDS)
    except ValueError as error:
        raise InvalidDocumentError.at("?confirm", str(error)) from error
    return Start(yaml_documents.dump(_brief(stored_spec(document))), f"leading arms of {record.name}")


def _brief(value: Any) -> Any:
    """Return a specification, or a part of one, as a person would write it: without defaults, the
    content of uploads, and the trials that a study has proposed.
    """
    match value:
        case BaseModel():
            fields = {
                name: field.get_default(call_default_factory=True)
                for name, field in type(value).model_fields.items()
            }
            known = {"kind"} & fields.keys() | {
                name for name, default in fields.items() if getattr(value, name) != default
            }
            left_out = {"content"} if isinstance(value, Uploaded) else set()
            if isinstance(value, Study):
                left_out = {"proposed"}
            return {
                name: _brief(getattr(value, name))
                for name in sorted(known - left_out, key=["kind", *fields].index)
            }
        case dict():
            return {name: _brief(item) for name, item in value.items()}
        case tuple():
            return [_brief(item) for item in value]
        case _:
            return value
