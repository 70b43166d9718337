"""Whole rounds: one method beside another, and what they computed before the round was taken apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fedcore import ExperimentSpec, Simulation
from fedcore.testing import runs
from tests.builders import stored_values
from tests.builders.specifications import Document, merged, specification

DIGITS: Document = {
    "name": "digits",
    "problem": {
        "dataset": {"kind": "digits"},
        "model": {"kind": "mlp", "hidden": [10]},
        "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.3},
    },
    "algorithm": {"kind": "fedavg"},
    "participation": {"kind": "uniform", "clients_per_round": 4},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 20},
    "rounds": 5,
    "evaluation": {"measures": []},
    "execution": {"precision": "float64", "engine": "reference"},
}


def batch_normalised(policy: str) -> Document:
    """A network with batch norm, whose running statistics are not parameters."""
    own = 20 * (policy in ("local", "frozen"))
    model = {
        "kind": "import",
        "path": "tests.models.factories:batch_normalised",
        "parameters": 352 - own,
        "l2": 0.01,
        "batch_norm": policy,
    }
    return {"model": model}


def method(kind: str, **fields: Any) -> Document:
    return {"algorithm": {"kind": kind, **fields}}


def sgd(**fields: Any) -> Document:
    return {"optimizer": {"kind": "sgd", **fields}}


UP = {"uplink": {"kind": "top_k", "ratio": 0.1}}
DOWN = {"downlink": {"kind": "top_k", "ratio": 0.2}}
EF21 = {"uplink": {"kind": "top_k", "ratio": 0.1, "feedback": "ef21"}}
OWN, AVERAGE = batch_normalised("local"), batch_normalised("average")
SOME = {"participation": {"kind": "bernoulli", "probability": 0.5, "weighting": "uniform"}}
NOISE = {"kind": "client_level", "clip_norm": 0.5, "noise_multiplier": 0.5}
ADAPTIVE = {"privacy": {**NOISE, "adaptive_clipping": {}}}
MOMENTUM = {"server": {"kind": "momentum", "lr": 1.0, "beta": 0.9}}
SPEED = {"steps_per_second": {"kind": "log_normal", "median": 10.0, "sigma": 1.0}}
BUFFERED: Document = {
    "participation": {"kind": "full"},
    "systems": {"devices": SPEED},
    "asynchrony": {"kind": "fedbuff", "concurrency": 5, "buffer": 2},
    "rounds": 8,
}
SLOW_LINKS = {"devices": {**SPEED, "download_bytes_per_second": {"kind": "constant", "value": 2000.0}}}

CASES: dict[str, Document] = {
    "fedavg": {},
    "fedavg, momentum, decay, proximal, clipped, server adam": {
        "local": {**sgd(momentum=0.9, weight_decay=0.01, prox_mu=0.1), "clip_norm": 1.0},
        "server": {"kind": "adam", "lr": 0.01},
    },
    "fedprox, adaptive": {**method("fedprox", mu=0.1, adaptive=True), "rounds": 8},
    "scaffold": method("scaffold"),
    "scaffold, momentum": {**method("scaffold"), "local": sgd(momentum=0.9)},
    "fedlin": method("fedlin"),
    "fedlin, compressed both ways": {**method("fedlin"), "compression": UP | DOWN},
    "fedlin from zero, compressed both ways": {
        **method("fedlin", initial_gradient="zero"),
        "compression": UP | DOWN,
    },
    "fedsvrg": method("fedsvrg"),
    "fedsam": method("fedsam"),
    "feddyn": method("feddyn"),
    "vrlsgd": method("vrlsgd"),
    "ifca": method("ifca", clusters=3),
    "ifca, shared layers": method("ifca", clusters=3, head=1),
    "ifca, shared layers, gradients, server adam": {
        **method("ifca", clusters=3, head=1, averaging="gradients"),
        "server": {"kind": "adam", "lr": 0.01},
    },
    "ifca, shared layers, compressed up": {**method("ifca", clusters=3, head=1), "compression": UP},
    "ifca, compressed down": {**method("ifca", clusters=3), "compression": DOWN},
    "ifca, two clusters": method("ifca", clusters=2),
    "ditto": method("ditto", lam=0.5),
    "ditto, momentum, clipped": {
        **method("ditto", lam=0.5),
        "local": {**sgd(momentum=0.9), "clip_norm": 0.5},
    },
    "apfl, adaptive": method("apfl", adaptive=True),
    "fedper": method("fedper"),
    "fedper, compressed up": {**method("fedper"), "compression": UP},
    "fedrep": method("fedrep", body_steps=2),
    "own batch norm": {"problem": OWN},
    "own batch norm, scaffold": {**method("scaffold"), "problem": OWN},
    "own batch norm, fedprox, momentum, decay, clipped": {
        **method("fedprox", mu=0.5),
        "problem": OWN,
        "local": {**sgd(momentum=0.9, prox_mu=0.1, weight_decay=0.01), "clip_norm": 0.3},
    },
    "own batch norm, fedsvrg": {**method("fedsvrg"), "problem": OWN},
    "own batch norm, fedsam": {**method("fedsam"), "problem": OWN},
    "own batch norm, fedlin, compressed both ways": {
        **method("fedlin"),
        "problem": OWN,
        "compression": UP | DOWN,
    },
    "own batch norm, feddyn, compressed up": {**method("feddyn"), "problem": OWN, "compression": UP},
    "averaged batch norm": {"problem": AVERAGE},
    "compressed both ways": {"compression": UP | DOWN},
    "feddyn, ef21": {**method("feddyn"), "compression": EF21},
    "feddyn, compressed up": {**method("feddyn"), "compression": UP},
    "private, adaptive clipping": {**SOME, **ADAPTIVE},
    "private, adaptive clipping, server momentum": {**SOME, **ADAPTIVE, **MOMENTUM},
    "private, hardly anybody, server momentum": {
        "participation": {"kind": "bernoulli", "probability": 0.05, "weighting": "uniform"},
        "privacy": NOISE,
        **MOMENTUM,
        "rounds": 8,
    },
    "noise of each client, krum": {
        "privacy": {"kind": "local", "clip_norm": 0.5, "noise_multiplier": 0.1},
        "aggregator": {"kind": "krum"},
    },
    "flipped signs, krum": {
        "participation": {"kind": "full"},
        "systems": {"attack": {"kind": "sign_flipping", "share": 0.25}},
        "aggregator": {"kind": "krum", "malicious": 0.25, "selected": 3},
    },
    "fedbuff": BUFFERED,
    "fedbuff, averaged batch norm": {**BUFFERED, "problem": AVERAGE},
    "fedbuff, compressed down, slow links": {**BUFFERED, "systems": SLOW_LINKS, "compression": DOWN},
    "fedbuff, fedprox, adaptive, compressed both ways": {
        **BUFFERED,
        **method("fedprox", adaptive=True),
        "compression": UP | DOWN,
    },
}


def case(name: str, **changes: Any) -> ExperimentSpec:
    return specification(merged(DIGITS, CASES[name]), **changes)


def played(name: str) -> Simulation:
    simulation = Simulation(case(name), 1, models_allowed=["tests.models.factories:*"])
    while not simulation.finished:
        simulation.advance()
    return simulation


STORED: dict[str, Callable[[], Simulation]] = {name: partial(played, name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_values_that_were_stored(name: str) -> None:
    assert not stored_values.differences(stored_values.values_of(played(name)), stored_values.read()[name])


@pytest.mark.nightly
@pytest.mark.usefixtures("factories_allowed")
@pytest.mark.parametrize("name", CASES)
def test_a_run_resumed_at_any_round_has_the_same_state_in_every_round(name: str) -> None:
    runs.resumes_at_every_round(partial(case, name))
