"""Local optimisers against PyTorch's, in every engine, and where they are rejected."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.block import kind_of
from fedcore.core import Solver, Vectors
from fedcore.engine.engines import check_supported
from fedcore.errors import SpecificationError
from fedcore.solvers.optimisers import OPTIMISERS, LocalOptimiser
from fedcore.spec.local import LocalSolver
from fedcore.testing import runs
from tests.builders.specifications import (
    ALGORITHMS,
    EXACTLY,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    quadratics,
    specification,
    suited,
)

Optimiser = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

PUBLISHED: dict[str, tuple[Document, Optimiser]] = {
    "sgd": (
        {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
        lambda y: torch.optim.SGD(y, lr=0.05, momentum=0.9, weight_decay=0.1),
    ),
    "adam": ({"kind": "adam"}, torch.optim.Adam),
    "adam with parameters": (
        {"kind": "adam", "lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.2},
        lambda y: torch.optim.Adam(y, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2),
    ),
    "adamw": ({"kind": "adamw"}, torch.optim.AdamW),
    "adamw with parameters": (
        {"kind": "adamw", "lr": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.2},
        lambda y: torch.optim.AdamW(y, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2),
    ),
}
ADAM = {"kind": "adam", "lr": 0.05, "weight_decay": 0.01}
ADAMW = {"kind": "adamw", "lr": 0.05, "weight_decay": 0.1}


def parameters(spec: ExperimentSpec) -> Tensor:
    simulation = Simulation(spec, seed=0)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([value.flatten() for value in simulation.model().values()])


def trained_by_hand(
    optimiser: Optimiser, *, rounds: int, steps: int, mu: float = 0.0, clip_norm: float | None = None
) -> Tensor:
    """FedAvg, or FedProx with `mu`, on the quadratics 1/2 y'Hy - e'y of `QUADRATIC`, by PyTorch's
    own optimiser.
    """
    clients = quadratics()
    weights = np.array([client["weight"] for client in clients])
    x = torch.tensor(QUADRATIC["problem"]["dataset"]["x0"], dtype=torch.float64)
    for _ in range(rounds):
        mean = torch.zeros_like(x)
        for client, weight in zip(clients, weights / weights.sum(), strict=True):
            y = x.clone().requires_grad_()
            local = optimiser([y])
            for _ in range(steps):
                local.zero_grad()
                hessian, linear = (torch.tensor(client[name], dtype=torch.float64) for name in "He")
                loss = 0.5 * y @ hessian @ y - linear @ y + 0.5 * mu * (y - x).square().sum()
                (y.grad,) = torch.autograd.grad(loss, y)
                if clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_([y], clip_norm)
                local.step()
            mean += weight * y.detach()
        x = mean
    return x


def quadratic(**changes: Any) -> ExperimentSpec:
    base = {name: value for name, value in QUADRATIC.items() if name not in ("systems", "local")}
    return specification(base | {"rounds": 3, "local": {"steps": 4}}, **changes)


@pytest.mark.parametrize("case", PUBLISHED)
def test_an_optimiser_takes_the_steps_of_pytorchs(case: str) -> None:
    document, optimiser = PUBLISHED[case]
    expected = trained_by_hand(optimiser, rounds=3, steps=4)
    found = parameters(quadratic(local={"optimizer": document}))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("case", ["adam", "adamw"])
def test_the_optimiser_sees_the_gradient_with_fedproxs_term(case: str) -> None:
    document, optimiser = PUBLISHED[case]
    expected = trained_by_hand(optimiser, rounds=3, steps=4, mu=0.7)
    algorithm = {"kind": "fedprox", "mu": 0.7}
    found = parameters(quadratic(algorithm=algorithm, local={"optimizer": document}))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("clip_norm", [0.5, 4.0, 100.0])
def test_clipping_is_pytorchs(clip_norm: float) -> None:
    def sgd(y: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(y, lr=0.05, momentum=0.9)

    expected = trained_by_hand(sgd, rounds=3, steps=4, mu=0.7, clip_norm=clip_norm)
    local = {"optimizer": {"lr": 0.05, "momentum": 0.9}, "clip_norm": clip_norm}
    found = parameters(quadratic(algorithm={"kind": "fedprox", "mu": 0.7}, local=local))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_the_moments_are_new_in_every_round() -> None:
    """In one step per round Adam moves each client by the sign of its gradient, in every round."""
    clients = quadratics()
    share = np.array([client["weight"] for client in clients])
    hessians, linear = (np.array([client[name] for client in clients]) for name in "He")
    x = np.array(QUADRATIC["problem"]["dataset"]["x0"])
    for _ in range(6):
        x = x - 0.125 * share / share.sum() @ np.sign(hessians @ x - linear)
    spec = quadratic(local={"optimizer": {"kind": "adam", "lr": 0.125, "eps": 1e-30}, "steps": 1}, rounds=6)
    np.testing.assert_allclose(parameters(spec), x, rtol=0, atol=1e-13)


SHORT: Document = merged(SYNTHETIC, {"local": {"epochs": 1, "batch_size": 50}, "rounds": 3})
"""The third round uses what the second has left."""
FITTING = [kind for kind in ALGORITHMS if kind not in ("feddc", "fedcm", "fednova", "scaffold", "vrlsgd")]


LOCALS: list[Document] = [{"optimizer": ADAM}, {"optimizer": ADAMW}, {"clip_norm": 0.5}]


@pytest.mark.parametrize(("kind", "local"), [*zip(FITTING, cycle(LOCALS), strict=False)], ids=str)
def test_every_rule_runs_alike_in_every_engine(kind: str, local: Document) -> None:
    assert_engines_agree(kind, local)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", FITTING)
def test_every_rule_runs_alike_in_every_engine_under_every_optimiser(kind: str) -> None:
    for local in LOCALS:
        assert_engines_agree(kind, local)


def assert_engines_agree(kind: str, local: Document) -> None:
    rate = {"lr": None} if "optimizer" in local else {}
    document = merged(SHORT, {**suited(kind), "local": rate | local})
    expected = parameters(specification(document, execution={"engine": "reference"}))
    for engine in ("parallel", "vectorised"):
        found = parameters(specification(document, execution={"engine": engine}))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("optimiser", [ADAM, ADAMW], ids=lambda optimiser: optimiser["kind"])
def test_a_run_goes_on_from_any_round_to_the_bit(optimiser: Document, engine: str) -> None:
    local = {"lr": None, "optimizer": optimiser, "clip_norm": 1.0}
    changes = {"local": local, "execution": {"engine": engine, "precision": "float32"}}
    runs.resumes_at_every_round(lambda: specification(SHORT, **changes))


def _with_optimum() -> tuple[list[Document], Tensor]:
    clients = [client | {"weight": 1.0} for client in quadratics()]
    hessians, linear = (np.array([client[name] for client in clients]) for name in "He")
    return clients, torch.from_numpy(np.linalg.solve(hessians.mean(0), linear.mean(0)))


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "fedlin"},
        {"kind": "fedsvrg"},
        {"kind": "feddyn", "alpha": 1.0},
        {"kind": "fedsplit"},
        {"kind": "scaffold", "option": 1},
    ],
    ids=lambda algorithm: algorithm["kind"],
)
def test_clipped_exact_methods_reach_the_optimum(algorithm: Document) -> None:
    """Local gradients at the optimum are longer than the limit; the corrected direction is zero."""
    clients, optimum = _with_optimum()
    dataset = {"clients": clients, "x0": (optimum + 0.5).tolist()}
    local = {"lr": 0.1, "clip_norm": 0.2}
    changes = {"problem": {"dataset": dataset}, "local": local, "rounds": 600, "evaluation": {"every": 600}}
    found = parameters(quadratic(algorithm=algorithm, **changes))
    torch.testing.assert_close(found, optimum, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["fedlin", "fedsvrg"])
def test_adam_stays_at_the_optimum_of_an_exact_method(kind: str) -> None:
    clients, optimum = _with_optimum()
    problem = {"dataset": {"clients": clients, "x0": optimum.tolist()}}
    local = {"optimizer": {"kind": "adam", "lr": 0.05, "eps": 1.0}}
    found = parameters(quadratic(problem=problem, algorithm={"kind": kind}, local=local))
    torch.testing.assert_close(found, optimum, rtol=0, atol=1e-11)


NEEDS_NORMALISER = [
    {"kind": "fednova"},
    {"kind": "fednova", "variance_reduction": True},
    {"kind": "fedavg", "variance_reduction": True},
    {"kind": "scaffold"},
    {"kind": "vrlsgd"},
    {"kind": "fedcm"},
]


@pytest.mark.parametrize("algorithm", NEEDS_NORMALISER, ids=str)
@pytest.mark.parametrize(
    ("local", "pointer"),
    [({"optimizer": ADAM}, "/local/optimizer"), ({"lr": 0.1, "clip_norm": 1.0}, "/local/clip_norm")],
)
def test_solvers_without_a_normaliser_are_rejected_where_it_is_used(
    algorithm: Document, local: Document, pointer: str
) -> None:
    with pytest.raises(SpecificationError, match=r"\|\|a_i\|\|_1, which is undefined") as refused:
        quadratic(algorithm=algorithm, local=local)
    assert refused.value.pointer == pointer


@pytest.mark.parametrize("kind", EXACTLY)
def test_an_algorithm_says_whether_it_divides_by_the_normaliser(kind: str) -> None:
    """Under any optimiser the normaliser that is used would show as NaN in the model."""
    spec = quadratic(algorithm={"kind": kind}, local={"lr": 0.05})
    object.__setattr__(spec, "local", spec.local.model_copy(update={"clip_norm": 1e6}))
    algorithm = spec.build()
    needed = "normaliser" in algorithm.rule.needs() | algorithm.aggregator.needs()
    assert bool(parameters(spec).isnan().any()) is needed


@pytest.mark.parametrize("local", [{"lr": None, "optimizer": ADAM}, {"clip_norm": 1.0}], ids=str)
def test_machine_code_is_for_plain_sgd(local: Document) -> None:
    # So short a run is not measured.
    simulation = Simulation(specification(SYNTHETIC, local=local, rounds=1), seed=0)
    assert simulation.facts.choice.engine == "vectorised"
    with pytest.raises(SpecificationError) as refused:
        check_supported("compiled", simulation.context.algorithm, simulation.context.problem)
    assert refused.value.pointer == "/execution/engine"


def test_measures_of_the_normaliser_are_undefined_without_it() -> None:
    measures = ["weight_bias", "tau_eff", "slowdown", "surrogate_diversity", "gradient_diversity"]
    spec = quadratic(local={"optimizer": ADAM}, evaluation={"measures": measures})
    values = Simulation(spec, seed=0).advance().extra
    assert {name for name in measures if np.isnan(values[name])} == set(measures[:4])


@dataclass(frozen=True)
class Lion(Solver):
    """sign(beta1 m + (1 - beta1) d), with m <- beta2 m + (1 - beta2) d (Chen et al., 2023)."""

    def start(self) -> dict[str, float]:
        return {"m": 0.0}

    def step(self, direction: Tensor, y: Tensor, state: Vectors, k: int) -> tuple[Tensor, Vectors]:
        step = (0.9 * state["m"] + 0.1 * direction).sign()
        return step, {"m": 0.99 * state["m"] + 0.01 * direction}

    def momentum_form(self) -> None:
        return None


class LionOptimiser(LocalOptimiser):
    """Lion with the constants of its paper."""

    kind: Literal["lion"] = "lion"

    def build(self) -> Solver:
        return Lion()


def test_another_optimiser_needs_its_step_alone() -> None:
    def with_lion(engine: str) -> ExperimentSpec:
        local = {"lr": None, "optimizer": LionOptimiser(lr=0.01)}
        return ExperimentSpec.model_validate(
            merged(SYNTHETIC, {"local": local, "execution": {"engine": engine}})
        )

    expected = parameters(with_lion("reference"))
    for engine in ("parallel", "vectorised", "auto"):
        torch.testing.assert_close(parameters(with_lion(engine)), expected, rtol=0, atol=1e-9)


def test_a_block_without_a_kind_is_sgd() -> None:
    local = LocalSolver.model_validate({"optimizer": {"lr": 0.1, "momentum": 0.5}, "steps": 1})
    assert (local.optimizer.kind, local.rate) == ("sgd", 0.1)


@pytest.mark.parametrize(("kind", "rate"), [("adam", 1e-3), ("adamw", 1e-3)])
def test_adam_has_pytorchs_step_size_unless_given(kind: str, rate: float) -> None:
    assert LocalSolver.model_validate({"optimizer": {"kind": kind}, "steps": 1}).rate == rate
    assert LocalSolver.model_validate({"optimizer": {"kind": kind}, "lr": 0.5, "steps": 1}).rate == 0.5


@pytest.mark.parametrize("member", OPTIMISERS.builtin, ids=kind_of)
def test_an_optimiser_has_an_example_and_a_source(member: type[LocalOptimiser]) -> None:
    assert member.model_validate({"kind": kind_of(member), **member.example}).build() is not None
    assert member.source or kind_of(member) == "sgd"
