"""The digest of a specification: the same for what computes the same, another for everything
else.
"""

import hashlib

import pytest

from fedcore.presets import override
from fedcore.spec.digest import specification_sha256
from tests.builders.specifications import SYNTHETIC, Document, specification

SWEPT = SYNTHETIC | {"sweep": {"local.lr": [0.1, 0.2], "local.epochs": [1, 2]}, "seeds": [0, 1]}


def _digest(document: Document) -> str:
    return specification_sha256(specification(document).model_dump(mode="json"))


def test_digest_is_sha256_of_canonical_json() -> None:
    document = {
        "rounds": 2,
        "name": "a",
        "execution": {"priority": 3, "engine": "auto"},
        "local": {"lr": 0.1, "batch": "größer"},
    }
    written = '{"execution":{"engine":"auto"},"local":{"batch":"größer","lr":0.1},"rounds":2}'
    assert specification_sha256(document) == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"},
        {"description": "of the same"},
        {"tags": ["again"]},
        {"execution": {"queue": "gpu", "priority": 9}},
        {"local": {"batch_size": 32}},
    ],
)
def test_words_place_and_defaults_written_out_do_not_count(changes: Document) -> None:
    assert _digest(override(SWEPT, changes)) == _digest(SWEPT)


@pytest.mark.parametrize(
    "changes",
    [
        {"local": {"lr": 0.02}},
        {"seeds": [1, 0]},
        {"rounds": 5},
        {"execution": {"engine": "reference"}},
        {"sweep": {"local.lr": [0.1, 0.3]}},
        {"evaluation": {"every": 2}},
    ],
)
def test_changes_of_the_computation_change_the_digest(changes: Document) -> None:
    assert _digest(override(SWEPT, changes)) != _digest(SWEPT)


def test_of_a_code_bundle_the_content_counts_and_not_where_it_is_stored() -> None:
    def with_code(digest: str, id: str | None) -> str:
        return _digest(SWEPT | {"code": {"digest": f"sha256:{digest * 64}", "id": id, "components": {}}})

    assert with_code("0", "cod_1") == with_code("0", None)
    assert len({_digest(SWEPT), with_code("0", "cod_1"), with_code("1", "cod_1")}) == 3


def test_the_order_of_a_sweep_is_that_of_its_arms_and_counts() -> None:
    turned = dict(reversed(SWEPT["sweep"].items()))
    assert _digest(SWEPT | {"sweep": turned}) != _digest(SWEPT)
