"""Specifications that use a code bundle, in a process that has not loaded it."""

from typing import Any

import pytest
from pydantic import ValidationError

from fedcore.simulation.checkpoint import fingerprint
from fedcore.spec import ExperimentSpec
from fedcore.spec.digest import specification_sha256
from fedcore.spec.experiment import stored_arms

DIGEST = "sha256:" + "0" * 64
CODE = {
    "digest": DIGEST,
    "id": "cod_1",
    "components": {"algorithms": ["newrule"], "measures": ["update_norm"]},
}


def document(**fields: Any) -> dict[str, Any]:
    return {
        "name": "own code",
        "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 3, "dim": 2, "seed": 0}}},
        "algorithm": {"kind": "newrule", "strength": 2.5, "nested": {"deep": [1, 2]}},
        "local": {"lr": 0.1, "steps": 1},
        "rounds": 2,
        "evaluation": {"measures": ["train_loss", "update_norm", {"kind": "update_norm", "p": 3}]},
        "code": CODE,
        **fields,
    }


def test_fields_of_a_bundles_components_are_kept_as_they_are() -> None:
    spec = ExperimentSpec.model_validate(document())
    assert spec.has_stand_ins
    dumped = spec.model_dump(mode="json")
    assert dumped["algorithm"] == {
        "kind": "newrule",
        "server_lr": 1.0,
        "strength": 2.5,
        "nested": {"deep": [1, 2]},
    }
    assert dumped["evaluation"]["measures"][2] == {"kind": "update_norm", "p": 3}
    assert ExperimentSpec.model_validate(dumped) == spec


def test_the_kinds_of_a_bundle_are_known_only_to_its_experiments() -> None:
    ExperimentSpec.model_validate(document())
    with pytest.raises(ValidationError, match="newrule"):
        ExperimentSpec.model_validate(document(code=None))
    with pytest.raises(ValidationError, match="newrule"):
        ExperimentSpec.model_validate(document(code={**CODE, "components": {}}))


def test_arms_may_sweep_the_kinds_of_a_bundle_beside_built_in_ones() -> None:
    spec = ExperimentSpec.model_validate(
        document(sweep={"algorithm": [{"kind": "fedavg"}, {"kind": "newrule", "strength": 1.0}]})
    )
    assert [arm.spec.algorithm.kind for arm in spec.arms()] == ["fedavg", "newrule"]
    assert [arm.spec.has_stand_ins for arm in stored_arms(spec.model_dump(mode="json"))] == [True, True]


def test_a_digest_alone_is_short_for_the_block() -> None:
    spec = ExperimentSpec.model_validate(document(algorithm={"kind": "fedavg"}, evaluation={}, code=DIGEST))
    assert spec.code is not None
    assert spec.code.digest == DIGEST
    with pytest.raises(ValidationError, match="code"):
        ExperimentSpec.model_validate(document(code="sha256:123"))


def test_specifications_without_code_keep_their_digests() -> None:
    plain = ExperimentSpec.model_validate(document(algorithm={"kind": "fedavg"}, evaluation={}, code=None))
    dumped = plain.model_dump(mode="json")
    older = {name: value for name, value in dumped.items() if name != "code"}
    assert specification_sha256(older) == specification_sha256(dumped)
    with_code = plain.model_copy(update={"code": ExperimentSpec.model_validate(document()).code})
    assert fingerprint(plain, 0) != fingerprint(with_code, 0)
