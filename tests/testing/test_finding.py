"""A mistake has one finding, which names its line, its cause and what to do."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedcore.testing import check_extension
from fedcore.testing.checks import checks_of, results_of
from tests.testing.test_checks import marked, write
from tests.testing.wrong_algorithms import ALGORITHM, HEAD, RULE, aggregator, rule, server
from tests.testing.wrong_components import component, compressor

__all__ = ["write"]  # a fixture

MARKED = "class Wrong(AlgorithmSpec):  # wrong"
MISTAKES: dict[str, tuple[str, str]] = {
    "memory of another shape": (
        rule(
            """    memory = ("last",)

    def remember(self, delta, sent, x, context):  # wrong
        return {"last": delta.reshape(-1)}
"""
        ),
        r"expected memory 'last' of shape \[3, 5\]; found shape \[15\]",
    ),
    "a global random generator": (
        rule(
            """    def direction(self, grad, y, context):
        return grad + 0.01 * torch.randn_like(grad)  # wrong
"""
        ),
        "found torch's default generator.*a client's rule draws by",
    ),
    "a generator without a seed": (
        rule(
            """    def direction(self, grad, y, context):
        return grad * (1 + np.random.default_rng().random())  # wrong
"""
        ),
        r"found numpy.random.default_rng\(\)",
    ),
    "forgotten memory": (
        rule(
            """    def direction(self, grad, y, context):
        return grad - context.memory["h"]  # wrong

    def remember(self, delta, sent, x, context):
        return {"h": context.memory["h"] - delta}
"""
        ),
        r"'h', which it does not name.*name it in the class: `memory = \('h',\)`",
    ),
    "state on self": (
        rule(
            """    seen: list = field(default_factory=list)

    def direction(self, grad, y, context):  # wrong
        self.seen.append(grad.mean(-1, keepdim=True))
        return grad - 0.1 * self.seen[-1]
"""
        ),
        "a change of `self.seen`.*state that is kept on `self`.*return it as memory",
    ),
    "state of a server on self": (
        server(
            """    seen: dict = field(default_factory=dict)

    def step(self, direction, state):  # wrong
        self.seen["m"] = self.seen.get("m", 0) + direction
        return self.lr * self.seen["m"], state
"""
        ),
        "a change of `self.seen`.*state of the aggregator or server optimiser",
    ),
    "a change of the given model": (
        rule(
            """    def direction(self, grad, y, context):  # wrong
        context.x.add_(0.1)
        return grad
"""
        ),
        "found a change of x.*make a new tensor",
    ),
    "a number of the whole cohort": (
        rule(
            """    def direction(self, grad, y, context):  # wrong
        return grad / grad.norm().item()
"""
        ),
        r"to be the same alone and in a cohort.*write for the last axis",
    ),
    "a device that is named": (
        rule(
            """    def direction(self, grad, y, context):
        return grad + torch.zeros(grad.shape[-1], dtype=grad.dtype).cuda()  # wrong
"""
        ),
        r"a device that the code names; make tensors beside those that are given: `x.new_zeros\(...\)`",
    ),
    "a constant of the CPU": (
        rule(
            """    def direction(self, grad, y, context):
        return grad * torch.ones(grad.shape[-1], dtype=grad.dtype)  # wrong
"""
        ),
        r"one on the CPU.*`torch.ones\(...\)` and the like without a device; make tensors beside",
    ),
    "a constant of the CPU that is returned": (
        aggregator(
            """    def combine(self, seen, cohort, aggregator_state):  # wrong
        sums = torch.from_numpy(np.zeros(seen.shape[-1])) if seen.device.type == "meta" else seen[0]
        return Aggregate(sums, self.coefficients(cohort), aggregator_state)
"""
        ),
        "one on the CPU",
    ),
    "a misspelt attribute": (
        rule(
            """    def direction(self, grad, y, context):
        return grad + context.full_grad  # wrong
"""
        ),
        "AttributeError.*did you mean `full_gradient`",
    ),
    "a misspelt method": (
        rule(
            """    def directions(self, grad, y, context):  # wrong
        return grad.sign()
"""
        ),
        "`directions`, which overrides nothing and which nothing uses.*did you mean `direction`",
    ),
    "a misspelt declaration": (
        rule('    memmory = ("h",)  # wrong\n'),
        "`memmory`, which overrides nothing.*did you mean `memory`",
    ),
    "a method of a name that FedQ does not know": (
        rule(
            """    def each_epoch(self, y):  # wrong
        return y
"""
        ),
        r"`each_epoch`, which overrides nothing.*see help\(Rule\)",
    ),
    "a direction of the wrong sign": (
        rule(
            """    def direction(self, grad, y, context):  # wrong
        return -grad
"""
        ),
        "the run ascends.*a sign",
    ),
    "a combination of the wrong sign": (
        aggregator(
            """    def combine(self, seen, cohort, aggregator_state):  # wrong
        return Aggregate(-seen[0], -self.coefficients(cohort), aggregator_state)
"""
        ),
        "the run ascends.*a sign",
    ),
    "a server's step of the wrong sign": (
        server(
            """    def step(self, direction, state):  # wrong
        return -self.lr * direction, state
"""
        ),
        "the run ascends.*the server adds its step to x",
    ),
    "a fixed point of another method": (
        rule(
            """    def direction(self, grad, y, context):
        return grad
"""
        )
        .replace("class Wrong(AlgorithmSpec):", MARKED)
        .replace("as `fedavg`", "the optimum, also with mini-batches"),
        "at its `fixed_point`, 'the optimum'; found a run at rest 0.8.*was copied from another method",
    ),
    "a correction that does not correct": (
        rule(
            """    def direction(self, grad, y, context):
        return grad + 0.5 * (y - context.x)
"""
        )
        .replace("class Wrong(AlgorithmSpec):", MARKED)
        .replace("as `fedavg`", "the optimum of the uniform sum"),
        "found a run at rest",
    ),
    "an optimiser that ascends": (
        component(
            "LocalOptimiser",
            '    lr: float = 0.05\n    """Step size."""\n\n    def build(self):\n        return Own()\n',
        ).replace(
            "\nclass Wrong",
            "\n@dataclass(frozen=True)\nclass Own(Solver):\n"
            "    def step(self, direction, y, state, k):\n        return -direction, state\n\n"
            "    def momentum_form(self):\n        return None\n\n\nclass Wrong",
        ),
        "the run ascends",
    ),
    "a compressor that turns messages around": (
        compressor("    def compress(self, message, drawn=None):\n        return -message\n"),
        "the run ascends|to arrive as it is",
    ),
    "a compressor with a constant of the CPU": (
        compressor(
            "    def compress(self, message, drawn=None):\n"
            "        return message * torch.ones(message.shape[-1], dtype=message.dtype)  # wrong\n"
        ),
        "one on the CPU",
    ),
}


LONG = {
    "importing it loads no tensor library",
    "randomness is keyed",
    "engines agree",
    "a resumed run is bit identical",
    "the work is that of fedavg",
    "memory does not grow",
}
"""Checks that take seconds and find none of these mistakes; built-in components are put through them."""


def findings(module: Any) -> list[Any]:
    checks = [check for check in checks_of(module.Wrong) if check.name not in LONG]
    return [found for _, found in results_of(checks) if found is not None]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_once_with_its_cause_and_what_to_do(mistake: str, write: Any) -> None:
    source, told = MISTAKES[mistake]
    module = write(source)
    found = findings(module)
    assert len(found) == 1, found
    assert re.search(told, found[0].message), found[0].message
    if "# wrong" in source:
        assert (found[0].file, found[0].line) == (module.__file__, marked(module))


def test_an_error_has_its_line_in_engines_whose_generators_it_ends(write: Any) -> None:
    module = write(
        rule(
            """    def direction(self, grad, y, context):
        return grad * context.anchor  # wrong
"""
        )
    )
    checks = {check.name: check for check in checks_of(module.Wrong)}
    for name in ("randomness is keyed", "engines agree"):
        found = checks[name].finding()
        assert found is not None
        assert (found.file, found.line) == (module.__file__, marked(module))


def test_helpers_that_are_used_and_validators_are_no_misspelt_methods(write: Any) -> None:
    source = rule(
        """    def directions(self, grad):
        return grad

    @property
    def factor(self):
        return 1.0

    def direction(self, grad, y, context):
        return self.factor * self.directions(grad)
"""
    )
    source += '    alpha: float = 0.5\n    """A number."""\n\n'
    source += '    @model_validator(mode="after")\n    def checked(self):\n        return self\n'
    checks = {check.name: check for check in checks_of(write(source).Wrong)}
    assert checks["every method overrides one or is used"].finding() is None


def test_a_misspelt_declaration_of_a_specification_is_named(tmp_path: Path) -> None:
    (tmp_path / "misspelt.py").write_text(HEAD + ALGORITHM + "    averages_model = True\n" + RULE)
    (finding,) = check_extension(str(tmp_path)).findings
    assert finding.cause == "a misspelt class attribute; did you mean `averages_models`?"
    assert finding.file == str(tmp_path / "misspelt.py")
