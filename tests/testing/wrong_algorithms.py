"""Algorithms with one mistake each: the check that finds it, and the line, marked `# wrong`."""

from __future__ import annotations

HEAD = '''"""A component with a mistake."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from pydantic import model_validator

from fedq.extensions import *

'''
ALGORITHM = '''

class Wrong(AlgorithmSpec):
    """An algorithm."""

    source = "unpublished"
    fixed_point = "as `fedavg`"
    kind: Literal["wrong"] = "wrong"
'''
RULE = "\n    def rule(self) -> Rule:\n        return Own()\n"
AGGREGATOR = "\n    def aggregator(self) -> Aggregator:\n        return Own()\n"
SERVER = "\n    def server(self, lr: float) -> ServerOptimiser:\n        return Own(lr)\n"


def rule(body: str, head: str = "class Own(Rule):") -> str:
    """A module with an algorithm that has this rule."""
    return f"{HEAD}\n@dataclass(frozen=True)\n{head}\n{body}{ALGORITHM}{RULE}"


def aggregator(body: str) -> str:
    """A module with an algorithm that has this aggregator."""
    return f"{HEAD}\n@dataclass(frozen=True)\nclass Own(Aggregator):\n{body}{ALGORITHM}{AGGREGATOR}"


def server(body: str) -> str:
    """A module with an algorithm that has this server optimiser."""
    return f"{HEAD}\n@dataclass(frozen=True)\nclass Own(ServerOptimiser):\n{body}{ALGORITHM}{SERVER}"


ALGORITHMS: dict[str, tuple[str, str]] = {
    "draws from PyTorch's generator": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return grad * (1 + 1e-3 * torch.rand(grad.shape[-1], dtype=grad.dtype))  # wrong
"""
        ),
    ),
    "draws in place": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return grad + torch.zeros_like(grad).normal_()  # wrong
"""
        ),
    ),
    "drops out": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return torch.nn.functional.dropout(grad, 0.1)  # wrong
"""
        ),
    ),
    "draws from NumPy's generator": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return grad * float(np.random.uniform())  # wrong
"""
        ),
    ),
    "draws from a generator without a seed": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return grad * np.random.default_rng().random()  # wrong
"""
        ),
    ),
    "draws from Python's generator": (
        "randomness is keyed",
        rule(
            """    def direction(self, grad, y, context):
        return grad * random.gauss(1, 0.1)  # wrong
"""
        ),
    ),
    "draws in the server": (
        "randomness is keyed",
        server(
            """    def step(self, direction, state):
        return self.lr * direction * torch.bernoulli(torch.full_like(direction, 0.5)), state  # wrong
"""
        ),
    ),
    "declares another pull": (
        "the affine form is that of direction",
        rule(
            """    def direction(self, grad, y, context):
        return grad + 0.5 * (y - context.x)

    def affine_form(self):  # wrong
        return AffineForm(0.1)
"""
        ),
    ),
    "declares a form of a sign": (
        "the affine form is that of direction",
        rule(
            """    def direction(self, grad, y, context):
        return grad.sign()

    def affine_form(self):  # wrong
        return AffineForm()
"""
        ),
    ),
    "hides an offset": (
        "the affine form is that of direction",
        rule(
            """    memory = ("last",)

    def direction(self, grad, y, context):
        return grad + context.memory["last"]

    def affine_form(self):  # wrong
        return AffineForm()

    def remember(self, delta, sent, x, context):
        return {"last": 0.1 * delta}
"""
        ),
    ),
    "sums with other weights": (
        "declared sums and coefficients are those of combine",
        aggregator(
            """    def weighted_sums(self, cohort):  # wrong
        return torch.ones_like(cohort.weights)[None] / len(cohort.weights)

    def combine(self, seen, cohort, aggregator_state):
        return Aggregate(seen[0], self.coefficients(cohort), aggregator_state)
"""
        ),
    ),
    "sums in one dimension": (
        "declared sums and coefficients are those of combine",
        aggregator(
            """    def weighted_sums(self, cohort):  # wrong
        return cohort.weights

    def combine(self, seen, cohort, aggregator_state):
        return Aggregate(seen[0], self.coefficients(cohort), aggregator_state)
"""
        ),
    ),
    "needs each delta, but declares their sum": (
        "shapes hold for one client and a cohort",
        aggregator(
            """    def combine(self, seen, cohort, aggregator_state):
        return Aggregate(cohort.weights @ seen, cohort.weights, aggregator_state)  # wrong
"""
        ),
    ),
    "returns memory that it does not declare": (
        "declared memory is what is used",
        rule(
            """    def remember(self, delta, sent, x, context):  # wrong
        return {"last": delta}
"""
        ),
    ),
    "reads memory that it does not declare": (
        "shapes hold for one client and a cohort",
        rule(
            """    def direction(self, grad, y, context):
        return grad - context.memory["control"]  # wrong
"""
        ),
    ),
    "declares memory that it does not return": (
        "declared memory is what is used",
        rule(
            """    memory = ("last",)
"""
        ).replace("class Own(Rule):", "class Own(Rule):  # wrong"),
    ),
    "keeps vectors that it does not count": (
        "declared memory is what is used",
        aggregator(
            """    def start(self, x):
        return {"velocity": torch.zeros_like(x)}

    def combine(self, seen, cohort, aggregator_state):
        velocity = aggregator_state["velocity"] * 0.9 + seen[0]
        return Aggregate(velocity, cohort.weights, {"velocity": velocity})
"""
        ).replace("class Own(Aggregator):", "class Own(Aggregator):  # wrong"),
    ),
    "mixes the clients of a cohort": (
        "shapes hold for one client and a cohort",
        rule(
            """    def direction(self, grad, y, context):  # wrong
        return grad / grad.norm()
"""
        ),
    ),
    "drops the axis of clients": (
        "shapes hold for one client and a cohort",
        rule(
            """    memory = ("last",)

    def remember(self, delta, sent, x, context):  # wrong
        return {"last": delta.reshape(-1)}
"""
        ),
    ),
    "gives a direction of another shape": (
        "shapes hold for one client and a cohort",
        aggregator(
            """    def combine(self, seen, cohort, aggregator_state):  # wrong
        return Aggregate(seen, cohort.weights, aggregator_state)
"""
        ),
    ),
    "keeps state on itself": (
        "a resumed run is bit identical",
        server(
            """    seen: list = field(default_factory=list)

    def step(self, direction, state):
        self.seen.append(1)
        return self.lr * direction / len(self.seen), state
"""
        ).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "keeps every direction": (
        "memory does not grow",
        server(
            """    seen: list = field(default_factory=list)

    def step(self, direction, state):
        self.seen.append(direction)
        return self.lr * direction, state
"""
        ).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "adds a vector to its state in every round": (
        "memory does not grow",
        aggregator(
            """    def start(self, x):
        return {"all": x.new_zeros((0, len(x)))}

    def combine(self, seen, cohort, aggregator_state):
        return Aggregate(seen[0], cohort.weights, {"all": torch.cat([aggregator_state["all"], seen])})
"""
        ).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "divides by zero": (
        "a run on quadratics descends",
        rule(
            """    def direction(self, grad, y, context):
        return grad / (y - context.x).norm(dim=-1, keepdim=True)
"""
        ).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "changes the model that it is given": (
        "given tensors are not changed",
        rule(
            """    def direction(self, grad, y, context):  # wrong
        return grad + context.x.mul_(1.01)
"""
        ),
    ),
    "changes the weights that it is given": (
        "given tensors are not changed",
        aggregator(
            """    def combine(self, seen, cohort, aggregator_state):  # wrong
        cohort.weights.div_(2)
        return Aggregate(seen[0], self.coefficients(cohort), aggregator_state)
"""
        ),
    ),
    "says that it averages models": (
        "declared properties hold",
        aggregator(
            """    def coefficients(self, cohort):
        return cohort.weights * 2
"""
        ).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong")
        + "    averages_models = True\n",
    ),
    "says that it has weights of its own": (
        "declared properties hold",
        HEAD
        + ALGORITHM.replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong")
        + "    own_weights = True\n",
    ),
    "takes more gradients than it says": (
        "declared properties hold",
        rule(
            """    def gradient(self, at, y, context):
        return at(y - at(y))

    def gradients_per_step(self):  # wrong
        return 1
"""
        ),
    ),
    "has a field without documentation": (
        "everything is documented",
        HEAD + ALGORITHM + "    alpha: float = 0.5  # wrong\n",
    ),
    "has no docstring": (
        "everything is documented",
        (HEAD + ALGORITHM)
        .replace('    """An algorithm."""\n', "")
        .replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "names no source": (
        "everything is documented",
        (HEAD + ALGORITHM)
        .replace('    source = "unpublished"\n', "")
        .replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong"),
    ),
    "imports PyTorch at its head": (
        "importing it loads no tensor library",
        HEAD.replace("import random\n", "import random\nimport torch as library  # wrong\n") + ALGORITHM,
    ),
    "has an example that is not valid": (
        "the example is valid",
        (HEAD + ALGORITHM).replace("class Wrong(AlgorithmSpec):", "class Wrong(AlgorithmSpec):  # wrong")
        + '    alpha: float\n    """A number."""\n',
    ),
    "changes when it is written": (
        "the specification round trips",
        HEAD
        + ALGORITHM
        + '    count: int = 1  # wrong\n    """A number."""\n\n    @model_validator(mode="before")\n'
        "    def _add(cls, given):\n        return given | {'count': given.get('count', 0) + 1}\n",
    ),
    "raises": (
        "shapes hold for one client and a cohort",
        rule(
            """    def direction(self, grad, y, context):
        return grad @ y  # wrong
"""
        ),
    ),
}
