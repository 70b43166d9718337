"""Pointers, messages and suggestions about documents that are not valid."""

from enum import StrEnum
from typing import Literal

import pytest
from pydantic import BaseModel, ValidationError

from fedcore import ExperimentSpec
from fedcore.errors import SpecificationError
from fedcore.spec.validation import (
    detail_of,
    explain_error,
    join_pointer,
    not_among,
    place_of,
    pointer_to,
    suggestion,
)
from tests.builders.specifications import SYNTHETIC, Document, merged

BLOCK = {
    "problem": {"dataset": {"kind": "quadratic", "clients": [{"H": 1}]}},
    "sweep": {"local.lr": [0.1]},
    "server": {"lr": "x"},
}
MANY = [f"measure_{letter}" for letter in "abcdefghijkl"]


@pytest.mark.parametrize(
    ("location", "pointer"),
    [
        (("problem", "dataset", "quadratic", "clients", 0, "H"), "/problem/dataset/clients/0/H"),
        (("problem", "dataset", "quadratic", "missing"), "/problem/dataset/missing"),
        (("server", "own", "lr"), "/server/lr"),
        (("sweep", "local.lr", 0, "float"), "/sweep/local.lr/0"),
        (("rounds",), "/rounds"),
        ((), ""),
    ],
)
def test_a_location_points_into_the_document_without_tags_and_labels(
    location: tuple[str | int, ...], pointer: str
) -> None:
    assert pointer_to(location, BLOCK) == pointer


def test_slashes_and_tildes_in_keys_are_escaped() -> None:
    assert join_pointer(["a/b", "c~d", 0]) == "/a~1b/c~0d/0"


@pytest.mark.parametrize(
    ("location", "told"),
    [
        (("raunds",), "did you mean rounds?"),
        (("algorithm", "fedprox", "muu"), "did you mean mu?"),
        (("algorithm", "fedavg", "mu"), "known fields: kind, server_lr, variance_reduction"),
        (("problem", "dataset", "quadratic", "clients", 0, "wait"), "did you mean weight?"),
        (("systems", "stragglers", "fractions"), "did you mean fraction?"),
    ],
)
def test_a_field_that_looks_alike_is_suggested_or_else_all_there_are(
    location: tuple[str | int, ...], told: str
) -> None:
    assert suggestion(ExperimentSpec, location) == told


@pytest.mark.parametrize(
    ("given", "names", "told"),
    [
        ("adma", ["sgd", "adam"], "must be one of 'sgd', 'adam', not 'adma'; did you mean 'adam'?"),
        ("zzz", ["sgd", "adam"], "must be one of 'sgd', 'adam', not 'zzz'"),
        ("measure-a", MANY, "must be one of 12 names, not 'measure-a'; did you mean 'measure_a'?"),
        (
            "a_measure",
            MANY,
            f"must be one of {', '.join(map(repr, MANY))}, not 'a_measure'; did you mean 'measure_l'?",
        ),
        (
            "ours/measure_a",
            MANY,
            (
                f"must be one of {', '.join(map(repr, MANY))}, not 'ours/measure_a'; no installed package"
                " defines it: install its package with FedQ (`pip install`; of a service also with its"
                " workers), or give its code (`--code FOLDER`) and write 'measure_a'"
            ),
        ),
        ("zzz", MANY, f"must be one of {', '.join(map(repr, MANY))}, not 'zzz'"),
        (3, ["sgd"], "must be one of 'sgd', not 3"),
        ("x" * 70, ["sgd"], f"must be one of 'sgd', not '{'x' * 60}...'"),
    ],
)
def test_name_that_looks_alike_is_suggested_from_a_closed_list(
    given: object, names: list[str], told: str
) -> None:
    assert not_among(given, names) == told


class _Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class _Painting(BaseModel):
    colour: _Colour = _Colour.RED
    style: Literal["oil", "ink"] = "oil"
    height: Literal[1, "auto"] = 1


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"colour": "bleu"}, "must be one of 'red', 'blue', not 'bleu'; did you mean 'blue'?"),
        ({"style": "oli"}, "must be one of 'oil', 'ink', not 'oli'; did you mean 'oil'?"),
        ({"height": "auot"}, "Input should be 1 or 'auto', not 'auot'"),
    ],
)
def test_enumerations_and_literals_are_closed_lists(document: Document, told: str) -> None:
    with pytest.raises(ValidationError) as raised:
        _Painting.model_validate(document)
    assert [detail_of(error) for error in raised.value.errors()] == [told]


@pytest.mark.parametrize(
    ("changes", "pointer", "told"),
    [
        (
            {"evaluation": {"measures": ["test_acuracy"]}},
            "/evaluation/measures/0",
            "did you mean 'test_accuracy'?",
        ),
        ({"evaluation": {"best_model": "test_los"}}, "/evaluation/best_model", "did you mean 'test_loss'?"),
        ({"algorithm": {"kind": "fedavgg"}}, "/algorithm/kind", "did you mean 'fedavg'?"),
        ({"local": {"optimizer": {"kind": "adma"}}}, "/local/optimizer/kind", "did you mean 'adam'?"),
        ({"execution": {"engine": "compild"}}, "/execution/engine", "did you mean 'compiled'?"),
        ({"seeds": 3}, "/seeds", "must be a list, not 3"),
        (
            {"evaluation": {"measures": "test_loss"}},
            "/evaluation/measures",
            "must be a list, not 'test_loss'",
        ),
    ],
)
def test_every_closed_list_of_a_specification_suggests(changes: Document, pointer: str, told: str) -> None:
    document = merged(SYNTHETIC, changes)
    with pytest.raises(ValidationError) as raised:
        ExperimentSpec.model_validate(document)
    (error,) = raised.value.errors()
    assert place_of(error, document) == pointer
    assert explain_error(error, ExperimentSpec).endswith(told)


TOP_K = {"kind": "top_k", "fraction": 0.05}


@pytest.mark.parametrize(
    ("sweep", "pointer", "told"),
    [
        (
            {"compression.uplink": [{"kind": "top_k", "ratio": 0.1}, TOP_K]},
            "/sweep/compression.uplink/1/fraction",
            "unknown field; did you mean ratio? (arm 'top_k fraction=0.05')",
        ),
        (
            {"arms": [{"name": "a", "rounds": 3}, {"name": "b", "compression": {"uplink": TOP_K}}]},
            "/sweep/arms/1/compression/uplink/fraction",
            "unknown field; did you mean ratio? (arm 'b')",
        ),
        (
            {"systems.stragglers.policy": ["drop", "dorp"]},
            "/sweep/systems.stragglers.policy/1",
            "must be one of 'drop', 'accept_partial', not 'dorp'; did you mean 'drop'? (arm 'policy=dorp')",
        ),
        (
            {"algorithm": [{"kind": "fedavg"}, {"mu": 1}]},
            "/sweep/algorithm/1/kind",
            "required: selects one of the kinds (arm 'algorithm={\"mu\": 1}')",
        ),
        (
            {"local.lr": [0.1, -1]},
            "/sweep/local.lr/1",
            "Input should be greater than 0, not -1 (arm 'lr=-1')",
        ),
        (
            {"evaluation.measures": [["test_loss"], "test_loss"]},
            "/sweep/evaluation.measures/1",
            "must be a list, not 'test_loss' (arm 'measures=test_loss')",
        ),
        (
            {"participation": [{"kind": "full"}, {"kind": "uniform", "clients_per_round": 400}]},
            "/sweep/participation/1/clients_per_round",
            (
                "400 clients cannot be drawn from 8 without replacement; use at most 8"
                " (arm 'uniform clients_per_round=400')"
            ),
        ),
    ],
)
def test_a_mistake_in_a_sweep_is_told_at_its_place_as_elsewhere(
    sweep: Document, pointer: str, told: str
) -> None:
    with pytest.raises(SpecificationError) as raised:
        ExperimentSpec.model_validate(merged(SYNTHETIC, {"sweep": sweep}))
    assert (raised.value.pointer, raised.value.detail) == (pointer, told)
