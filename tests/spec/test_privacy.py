"""Combinations that release more than is accounted for are refused, with the field and the fix."""

from __future__ import annotations

import json
import re
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import ValidationError

from fedcore import presets
from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.aggregators import AggregatorSpec
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.assurance import Assurance
from fedcore.block import Block, kind_of
from fedcore.compression.base import CompressorSpec
from fedcore.core import Aggregate, Aggregator, ClientContext, Cohort, Compressor, Rule, Solver, Vectors
from fedcore.errors import CheckpointError, SpecificationError, StateConflictError
from fedcore.privacy import PRIVACY
from fedcore.simulation.simulation import Simulation
from fedcore.solvers.optimisers import LocalOptimiser
from fedcore.solvers.schedules import InverseTimeLr, StepSizes
from fedcore.spec import ExperimentSpec
from fedcore.spec.extension import check_history_unchanged, extend_spec
from fedcore.spec.privacy import private_run
from fedcore.systems.attacks import SignFlipping
from fedcore.systems.participation import Full
from fedcore.systems.work import Constant
from tests.builders.specifications import DIGITS, SYNTHETIC, Document, merged, specification, suited

if TYPE_CHECKING:
    from torch import Tensor

PRIVATE = merged(
    SYNTHETIC,
    {
        "participation": {"kind": "bernoulli", "probability": 0.5, "weighting": "uniform"},
        "systems": None,
        "privacy": {"kind": "client_level", "noise_multiplier": 1.0},
    },
)


def equal(kind: str, **fields: Any) -> dict[str, Any]:
    return {"participation": {"kind": kind, "weighting": "uniform", **fields}}


@pytest.mark.parametrize(
    ("changes", "pointer", "fix"),
    [
        ({"participation": {"kind": "full"}}, "/participation/weighting", "use `uniform`"),
        (equal("with_replacement", clients_per_round=2), "/participation", "use `bernoulli`"),
        (equal("by_share", clients_per_round=2), "/participation", "use `bernoulli`"),
        (equal("without_replacement", clients_per_round=2), "/participation", "use `bernoulli`"),
        (equal("trace", rounds=[[0]] * 4), "/participation", "use `bernoulli`"),
        (equal("bernoulli", probability=[0.5] * 8), "/participation/probability", "one probability"),
        (
            {"systems": {"stragglers": {"fraction": 0.5, "policy": "drop"}}},
            "/systems/stragglers",
            "use `privacy: local`",
        ),
        (
            {"systems": {"availability": {"kind": "bernoulli", "probability": 0.5}}},
            "/systems/availability",
            "omit",
        ),
        (
            {
                "systems": {
                    "devices": {"steps_per_second": {"kind": "constant", "value": 1.0}},
                    "deadline": {"seconds": 1.0, "policy": "drop"},
                }
            },
            "/systems/deadline",
            "omit",
        ),
        (
            {"systems": {"attack": {"kind": "alie", "share": 0.25}}},
            "/systems/attack",
            "use `sign_flipping`, ",
        ),
        ({"aggregator": {"kind": "median"}}, "/aggregator", "use `local`"),
        ({"algorithm": {"kind": "scaffold"}}, "/algorithm", "use `fedavg`"),
        ({"algorithm": {"kind": "fednova"}}, "/algorithm", "use `fedavg`"),
        ({"algorithm": {"kind": "fedlin"}}, "/algorithm", "use `fedavg`"),
        ({"algorithm": {"kind": "feddyn"}}, "/algorithm", "use `fedavg`"),
        ({"algorithm": {"kind": "fedprox", "mu": 1.0, "adaptive": True}}, "/algorithm", "use `fedavg`"),
        ({"compression": {"uplink": {"kind": "top_k", "ratio": 0.1}}}, "/compression/uplink", "use `none`"),
        (
            {
                **equal("uniform", clients_per_round=4),
                "privacy": {"kind": "client_level", "noise_multiplier": 1.0, "accountant": "pld"},
            },
            "/privacy/accountant",
            "use `rdp`",
        ),
        *(
            (
                {"privacy": {"kind": kind, "target_epsilon": 1e5}},
                "/privacy/target_epsilon",
                "below 0.1",
            )
            for kind in ("client_level", "local", "example_level")
        ),
        (
            {
                "privacy": {
                    "kind": "client_level",
                    "target_epsilon": 1.0,
                    "adaptive_clipping": {"count_noise": 0.1},
                }
            },
            "/privacy/adaptive_clipping/count_noise",
            "omitted",
        ),
    ],
)
def test_a_combination_that_is_not_accounted_for_is_refused(
    changes: dict[str, Any], pointer: str, fix: str
) -> None:
    document = {**PRIVATE, **changes}
    with pytest.raises(SpecificationError, match=fix) as refused:
        ExperimentSpec.model_validate(document)
    assert refused.value.pointer == pointer


@pytest.mark.parametrize(
    ("changes", "pointer", "fix"),
    [
        ({"algorithm": {"kind": "fedsvrg"}}, "/algorithm", "use `fedavg`"),
        ({"local": {"lr": 0.1, "steps": 3, "batch_size": 10}}, "/local/steps", "`local.epochs`"),
        ({"execution": {"engine": "compiled"}}, "/execution/engine", "use `auto`"),
        ({"local": {"lr": 0.1, "epochs": 3}}, "/local/batch_size", "`local.batch_size`"),
        (
            {"systems": {"epochs": {"kind": "uniform", "low": 1, "high": 2}}},
            "/systems/epochs",
            "`local.epochs`",
        ),
        (
            {"systems": {"batch_size": {"kind": "uniform", "low": 1, "high": 2}}},
            "/systems/batch_size",
            "`local.batch_size`",
        ),
        (
            {"participation": {"kind": "without_replacement", "clients_per_round": 2, "transformed": True}},
            "/participation/transformed",
            "omit",
        ),
    ],
)
def test_dp_sgd_must_know_how_often_a_sample_is_used(changes: dict[str, Any], pointer: str, fix: str) -> None:
    privacy = {"kind": "example_level", "noise_multiplier": 1.0}
    with pytest.raises(SpecificationError, match=fix) as refused:
        ExperimentSpec.model_validate({**PRIVATE, **changes, "privacy": privacy})
    assert refused.value.pointer == pointer


def test_correlated_noise_must_know_the_rounds_of_each_client() -> None:
    with pytest.raises(SpecificationError, match="use `cyclic`") as refused:
        ExperimentSpec.model_validate({**PRIVATE, "privacy": {"kind": "dp_ftrl", "noise_multiplier": 1.0}})
    assert refused.value.pointer == "/participation"


def test_rounds_cannot_be_added_where_the_noise_was_solved_for_fewer() -> None:
    spec = ExperimentSpec.model_validate(
        {**PRIVATE, "privacy": {"kind": "client_level", "target_epsilon": 5.0}}
    )
    longer = extend_spec(spec, 8, ())
    check_history_unchanged(spec, longer, {0: 0})
    with pytest.raises(StateConflictError, match="target_epsilon"):
        check_history_unchanged(spec, longer, {0: 2})
    played = Simulation(spec, 0)
    played.advance()
    with pytest.raises(CheckpointError, match="noise multiplier"):
        Simulation(longer, 0).restore(played.checkpoint())


@pytest.mark.parametrize("policy", ["average", "local"])
def test_running_statistics_of_batch_norm_are_refused(policy: str) -> None:
    """The server averages them, or the model that the run ends with has the mean of the clients' own."""
    model = {"kind": "torchvision", "name": "resnet18", "batch_norm": policy}
    document = {**DIGITS, "problem": {**DIGITS["problem"], "model": model}}
    private = {name: PRIVATE[name] for name in ("participation", "privacy")}
    with pytest.raises(SpecificationError, match="use `frozen` or `group`") as refused:
        ExperimentSpec.model_validate({**document, **private})
    assert refused.value.pointer == "/problem/model/batch_norm"


def test_samples_without_gradients_of_their_own_are_refused() -> None:
    model = {"kind": "fedbn_cnn", "batch_norm": "local"}
    document = {**DIGITS, "problem": {**DIGITS["problem"], "model": model}}
    private = {"kind": "example_level", "noise_multiplier": 1.0}
    with pytest.raises(SpecificationError, match="use `frozen` or `group`") as refused:
        ExperimentSpec.model_validate({**document, "privacy": private})
    assert refused.value.pointer == "/problem/model/batch_norm"


@pytest.mark.parametrize(
    ("kind", "changes", "pointer", "statement"),
    [
        # The same noise in several gradients of a step, which a difference of them removes.
        ("example_level", {"algorithm": {"kind": "fedsam"}}, "/algorithm", Assurance.ONE_GRADIENT),
        ("example_level", {"algorithm": {"kind": "per_fedavg"}}, "/algorithm", Assurance.ONE_GRADIENT),
        (
            "example_level",
            {"algorithm": {"kind": "per_fedavg", "hessian": "differences"}},
            "/algorithm",
            Assurance.ONE_GRADIENT,
        ),
        ("example_level", {"algorithm": {"kind": "pfedme"}}, "/algorithm", Assurance.ONE_GRADIENT),
        # The model with the lowest loss tells which loss is lower.
        ("example_level", {"algorithm": {"kind": "ifca"}}, "/algorithm", Assurance.NOISY_GRADIENTS),
        # The steps of one client set the step sizes of all others.
        *(
            (
                kind,
                {
                    "local": {
                        "lr_schedule": {"kind": "inverse_time", "mu": 1.0, "gamma": 8.0},
                        "epochs": 2,
                        "batch_size": 32,
                    },
                    **equal("full"),
                },
                "/local/lr_schedule",
                Assurance.OWN_DATA,
            )
            for kind in ("client_level", "dp_ftrl", "local")
        ),
        # With one client more, others straggle.
        *(
            (
                "client_level",
                {"systems": {"stragglers": {"fraction": 0.5, "policy": "accept_partial"}}, **scheme},
                "/systems/stragglers",
                Assurance.COHORT_SIZE,
            )
            for scheme in ({}, equal("full"))
        ),
    ],
)
def test_blocks_not_accounted_for_are_named(
    kind: str, changes: dict[str, Any], pointer: str, statement: Assurance
) -> None:
    document = {**PRIVATE, **changes, "privacy": {"kind": kind, "noise_multiplier": 1.0}}
    with pytest.raises(SpecificationError, match=re.escape(f"does not assure that {statement},")) as refused:
        ExperimentSpec.model_validate(document)
    assert refused.value.pointer == pointer
    assert "use `" in refused.value.detail


NORMS = {"participation": {"kind": "importance", "clients_per_round": 2}}
SIZED = equal("uniform", clients_per_round=4)
PARTIAL = {"stragglers": {"fraction": 0.5, "policy": "accept_partial"}}
INVERSE: dict[str, Any] = {"lr_schedule": {"kind": "inverse_time", "mu": 1.0, "gamma": 8.0}}


@pytest.mark.parametrize(
    ("privacy", "changes", "epsilon"),
    [
        ({"kind": "client_level", "adaptive_clipping": {}}, {}, 7.589248),
        ({"kind": "client_level", "accountant": "pld"}, {}, 6.676962),
        ({"kind": "client_level"}, {**SIZED, "systems": PARTIAL}, 23.497948),
        ({"kind": "client_level"}, equal("full"), 10.801691),
        (
            {"kind": "client_level"},
            {"local": {"lr": None, **merged(INVERSE, {"lr_schedule": {"counts": "rounds"}})}},
            7.589248,
        ),
        ({"kind": "dp_ftrl"}, {**equal("full"), "systems": PARTIAL}, 32.126631),
        ({"kind": "dp_ftrl"}, equal("cyclic", clients_per_round=3), 15.301691),
        ({"kind": "local"}, {"aggregator": {"kind": "krum", "bucket_size": 2}}, 26.126631),
        ({"kind": "local"}, {"participation": {"kind": "uniform", "clients_per_round": 4}}, 26.126631),
        (
            {"kind": "local"},
            {"algorithm": {"kind": "fedaware"}, "participation": {"weighting": None}},
            26.126631,
        ),
        # What follows local noise is given noisy changes alone.
        *(
            ({"kind": "local"}, changes, 26.126631)
            for changes in (
                {"compression": {"uplink": {"kind": "top_k", "ratio": 0.1}}},
                {"compression": {"uplink": {"kind": "top_k", "ratio": 0.1, "error_feedback": True}}},
                {"compression": {"uplink": {"kind": "qsgd", "levels": 4}}},
                {"participation": {"kind": "importance", "clients_per_round": 2}},
            )
        ),
        ({"kind": "example_level"}, {"algorithm": {"kind": "ditto"}}, 16.801691),
        ({"kind": "example_level"}, {"algorithm": {"kind": "apfl"}}, 16.801691),
        ({"kind": "example_level"}, {"algorithm": {"kind": "scaffold"}}, 16.801691),
        ({"kind": "example_level"}, {"local": INVERSE}, 16.801691),
        (
            {"kind": "example_level"},
            {"participation": {"kind": "importance", "clients_per_round": 2}},
            16.801691,
        ),
        ({"kind": "example_level"}, {"systems": {"attack": {"kind": "alie", "share": 0.25}}}, 16.801691),
        ({"kind": "example_level"}, {"compression": {"uplink": {"kind": "top_k", "ratio": 0.1}}}, 16.801691),
    ],
)
def test_private_specification_is_accepted_with_its_epsilon(
    privacy: dict[str, Any], changes: dict[str, Any], epsilon: float
) -> None:
    document = merged(merged(PRIVATE, changes), {"privacy": {"noise_multiplier": 1.0, **privacy}})
    if changes.get("local"):
        document["local"].pop("lr", None)  # the schedule sets it
    spec = ExperimentSpec.model_validate(document)
    assert spec.epsilon(spec.rounds) == pytest.approx(epsilon, rel=1e-6)


EPSILONS = {
    "dp-fedavg-epsilon": (inf, 5.670336, 1.799795, 0.726611, 1.322694, 4.856236),
    "privacy-mechanisms": (
        *[7.993459] * 5,  # of different clipping norms
        7.998572,
        29.983848,
        29.867264,
        29.992845,
    ),
}


@pytest.mark.parametrize("name", EPSILONS)
def test_private_presets_spend_what_they_spent(name: str) -> None:
    arms = ExperimentSpec.model_validate(presets.load(name).spec).arms()
    spent = [arm.spec.epsilon(arm.spec.rounds) for arm in arms if arm.spec.privacy]
    assert spent == pytest.approx(EPSILONS[name], rel=1e-6)


def test_no_private_preset_is_left_out() -> None:
    private = {name for name in presets.names() if "privacy" in json.dumps(presets.load(name).spec)}
    assert private == set(EPSILONS)


class Tilted(Rule):
    """Steps of half the length."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad / 2


class Declared(Tilted):
    """Steps of half the length, with a declaration."""

    assures = Rule.assures


class TiltedSpec(AlgorithmSpec):
    """FedAvg with steps of half the length."""

    kind: Literal["tilted"] = "tilted"
    declared: bool = False

    def rule(self) -> Rule:
        return Declared() if self.declared else Tilted()


class OwnMean(Aggregator):
    """The mean once more."""

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        return super().combine(seen, cohort, aggregator_state)


class OwnMeanSpec(AggregatorSpec):
    """The mean once more."""

    kind: Literal["own_mean"] = "own_mean"

    def build(self) -> Aggregator:
        return OwnMean()


class OwnSolver(Solver):
    """Steps of half the length."""

    def step(self, direction: Tensor, y: Tensor, state: Vectors, k: int) -> tuple[Tensor, Vectors]:
        return direction / 2, state

    def momentum_form(self) -> None:
        return None


class OwnOptimiser(LocalOptimiser):
    """Steps of half the length."""

    kind: Literal["own_optimiser"] = "own_optimiser"

    def build(self) -> Solver:
        return OwnSolver()


class OwnSchedule(InverseTimeLr):
    """Another schedule."""

    kind: Literal["own_schedule"] = "own_schedule"  # type: ignore[assignment]

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        return StepSizes(1 / (1 + clock))


class OwnScheme(Full):
    """Every other client."""

    kind: Literal["own_scheme"] = "own_scheme"  # type: ignore[assignment]

    def draw(self, share: Any, reachable: Any, rng: Any, round: int) -> Any:
        return super().draw(share, reachable, rng, round)[::2]


class OwnWork(Constant):
    """As much as there are clients."""

    kind: Literal["own_work"] = "own_work"  # type: ignore[assignment]

    def draw(self, purpose: str, seed: int, round: int, client: int, samples: int) -> int:
        return 1


class OwnAttack(SignFlipping):
    """Another attack."""

    kind: Literal["own_attack"] = "own_attack"  # type: ignore[assignment]

    def forges(self) -> bool:
        return True

    def forge(self, deltas: Tensor, malicious: Tensor, rng: Any) -> Tensor:
        return -deltas


class OwnCompressor(Compressor):
    """Half of the message."""

    def compress(self, message: Tensor, drawn: Tensor | None = None) -> Tensor:
        return message / 2


class OwnCompression(CompressorSpec):
    """Half of the message."""

    kind: Literal["own_compression"] = "own_compression"

    def build(self, dim: int) -> Compressor:
        return OwnCompressor()


UNDECLARED = {
    "/algorithm": TiltedSpec(),
    "/aggregator": OwnMeanSpec(),
    "/local/optimizer": OwnOptimiser(),
    "/local/lr_schedule": OwnSchedule(mu=1, gamma=1, counts="rounds"),
    "/participation": OwnScheme(weighting="uniform"),
    "/systems/steps": OwnWork(value=1),
    "/systems/attack": OwnAttack(share=0.25),
    "/compression/uplink": OwnCompression(),
}


@pytest.mark.parametrize(
    ("kind", "field", "component"),
    [
        (kind, field, component)
        for kind in ("client_level", "local", "example_level")
        for field, component in UNDECLARED.items()
        if (kind, field) != ("local", "/compression/uplink")
    ],
)
def test_a_component_that_declares_nothing_is_refused(kind: str, field: str, component: Block) -> None:
    *blocks, name = field.strip("/").split("/")
    document = merged(PRIVATE, {"privacy": {"kind": kind, "noise_multiplier": 1.0}})
    if field.startswith("/local"):
        document["local"] = {"lr": None if "schedule" in name else 0.1, "epochs": 2, "batch_size": 32}
    if name == "steps":
        document["local"] = {"lr": 0.1, "steps": 2, "batch_size": 32}
    within = document
    for block in blocks:
        within = within.setdefault(block, {})
    within[name] = component
    with pytest.raises(SpecificationError) as refused:
        ExperimentSpec.model_validate(document)
    assert refused.value.pointer == field
    if (kind, field) != ("client_level", "/participation"):  # whose sampling no accountant knows
        assert "or declare what is true of yours as `assures`" in refused.value.detail


def test_a_compressor_that_declares_nothing_is_accepted_after_local_noise() -> None:
    """Whatever it does, it is given noisy changes alone."""
    privacy = {"kind": "local", "noise_multiplier": 1.0}
    spec = specification(merged(PRIVATE, {"privacy": privacy, "compression": {"uplink": OwnCompression()}}))
    assert spec.epsilon(4) == pytest.approx(26.126631, rel=1e-6)


def test_a_component_that_declares_what_is_required_is_accepted() -> None:
    for kind in ("client_level", "local", "example_level"):
        spec = specification(
            merged(PRIVATE, {"privacy": {"kind": kind, "noise_multiplier": 1.0}}),
            algorithm=TiltedSpec(declared=True),
        )
        assert spec.epsilon(4)


@pytest.mark.parametrize(
    "changes",
    [
        {"participation": {"kind": "uniform", "clients_per_round": 2}, "aggregator": {"kind": "median"}},
        {"algorithm": {"kind": "fedexp"}},
        {"systems": {"availability": {"kind": "bernoulli", "probability": 0.5}}},
    ],
)
def test_noise_of_clients_leaves_the_server_free(changes: dict[str, Any]) -> None:
    privacy = {"kind": "local", "noise_multiplier": 1.0}
    spec = ExperimentSpec.model_validate({**PRIVATE, **changes, "privacy": privacy})
    assert spec.epsilon(4) == PRIVACY.validate(privacy).epsilon(private_run(spec), 4)


@pytest.mark.parametrize("fields", [{}, {"noise_multiplier": 1.0, "target_epsilon": 1.0}])
def test_the_noise_is_given_once(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="either `noise_multiplier` or `target_epsilon`"):
        PRIVACY.validate({"kind": "client_level", **fields})


def test_without_privacy_there_is_neither_epsilon_nor_noise() -> None:
    spec = specification(SYNTHETIC)
    assert spec.epsilon(4) is None
    assert spec.noise_multiplier is None


MECHANISMS: tuple[Document, ...] = (
    {"participation": {"kind": "bernoulli", "probability": 0.5, "weighting": "uniform"}},
    {
        "privacy": {"kind": "local", "clip_norm": 0.3, "noise_multiplier": 1.0, "delta": 1e-3},
        "participation": {"weighting": None},
    },
    {
        "privacy": {"kind": "example_level", "clip_norm": 0.3, "noise_multiplier": 1.0, "delta": 1e-3},
        "local": {"epochs": 1, "batch_size": 10},
        "participation": {"weighting": None},
    },
)


@pytest.mark.parametrize("changes", MECHANISMS, ids=["client_level", "local", "example_level"])
def test_each_algorithm_that_a_refusal_recommends_is_accepted(changes: Document) -> None:
    examples = {kind_of(member): member.example for member in ALGORITHMS.builtin}
    with pytest.raises(SpecificationError) as refused:
        specification(PRIVATE, **merged(changes, {"algorithm": {"kind": "fedsvrg"}}))
    told = str(refused.value).rpartition(": use ")[2]
    recommended = [kind for kind in re.findall("`([a-z_]+)`", told) if kind in examples]
    assert "fedavg" in recommended
    for kind in recommended:
        own = merged(suited(kind), {"algorithm": examples[kind]})
        spec = specification(PRIVATE, **merged(changes, own))
        assert spec.algorithm.kind == kind


@pytest.mark.parametrize("weighting", [None, "uniform"])
def test_a_mechanism_with_an_aggregation_of_its_own_says_so_whatever_the_weighting(
    weighting: str | None,
) -> None:
    scheme = {"kind": "bernoulli", "probability": 0.5, "weighting": weighting}
    with pytest.raises(SpecificationError, match="has an aggregation of its own") as refused:
        specification(PRIVATE, algorithm={"kind": "fedaware"}, participation=scheme)
    assert refused.value.pointer == "/algorithm"


def test_dropout_is_refused_beside_gradients_of_samples_before_any_network_is_built() -> None:
    problem = {"dataset": {"kind": "digits"}, "partition": {"kind": "iid", "clients": 3}}
    changes = merged(MECHANISMS[2], {"problem": {**problem, "model": {"kind": "dropout_cnn"}}})
    with pytest.raises(SpecificationError, match="no gradients of their own in networks with dropout") as no:
        specification(PRIVATE, **changes)
    assert no.value.pointer == "/problem/model"
