"""Count the work of a run: local steps, gradients and scored samples. It is the same on every machine,
and every client is assumed to hold the mean number of samples.
"""

from dataclasses import dataclass
from math import ceil

from fedcore.core import Algorithm
from fedcore.data.exact import ExactProblem
from fedcore.measures import measure_named, names_of, of_population
from fedcore.models.dense import Linear, Logistic, Mlp
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import SAMPLE_SIZE
from fedcore.spec.problem import Problem, dimension, population
from fedcore.systems.work import AnyWork
from fedq.planning.traffic import drawn_clients

GRADIENT = 3.0
"""Work of a sample's gradient; scoring it is 1, a backward pass twice that."""
DENSE_GRADIENT = 1.0
"""Work of a sample's gradient of a dense network, which machine code computes in 0.2 to 2.8 times what
PyTorch takes to score a sample (docs/performance.md).
"""


@dataclass(frozen=True, slots=True)
class MeanRound:
    """Clients and steps of a mean round."""

    drawn: float
    """Clients that train."""
    arrived: float
    """Clients whose work reaches the server."""
    steps: float
    """Their local steps."""


def count_round(spec: ExperimentSpec) -> MeanRound:
    """Count the clients and local steps of a mean round of `spec`."""
    drawn = drawn_clients(spec)
    stragglers = spec.systems.stragglers
    slow = drawn * stragglers.fraction if stragglers else 0.0
    steps = (drawn - slow) * _steps(spec, partial=False)
    if stragglers and stragglers.policy == "drop":
        return MeanRound(drawn, drawn - slow, steps)
    return MeanRound(drawn, drawn, steps + slow * _steps(spec, partial=True))


def count_gradients(spec: ExperimentSpec, algorithm: Algorithm, counted: MeanRound) -> float:
    """Gradients of mini-batches in a mean round; a full gradient counts as all batches of the client."""
    rule, models = algorithm.rule, algorithm.models
    wanted, whole = rule.needs(), 0.0
    if models.full_gradient or "full_gradient" in wanted:
        whole = counted.arrived * _batches(spec, _held(spec.problem))
    in_step = rule.gradients_per_step() + ("gradient_at_x" in wanted) + models.trained - 1
    return counted.steps * in_step + whole


def _steps(spec: ExperimentSpec, *, partial: bool) -> float:
    """Local steps of one client; `partial`, of a straggler."""
    epochs = _mean(spec.systems.epochs, spec.local.epochs)
    steps = _mean(spec.systems.steps, spec.local.steps)
    samples = _held(spec.problem)
    length = epochs if epochs is not None else steps
    assert length is not None
    batches = _batches(spec, samples) if epochs is not None else 1
    in_steps = spec.systems.stragglers is not None and spec.systems.stragglers.unit == "steps"
    if partial:
        return (1 + length * batches) / 2 if in_steps else (1 + length) / 2 * batches
    return length * batches


def count_trained(spec: ExperimentSpec) -> float:
    """Samples whose gradient is computed in a mean round, each as often as it is."""
    held = _held(spec.problem)
    return count_round(spec).steps * held / _batches(spec, held)


def _batches(spec: ExperimentSpec, samples: float) -> float:
    """Batches in an epoch of a client with `samples` samples."""
    drawn, fixed = spec.systems.batch_size, spec.local.batch_size
    if drawn is not None:
        return drawn.mean_batches(samples)
    return ceil(samples / min(samples if fixed == "full" else fixed, samples))


def _mean(work: AnyWork | None, fixed: int | None) -> float | None:
    return fixed if work is None else work.average()


def _held(problem: Problem) -> float:
    """Training samples of one client, in the mean."""
    partition, samples = problem.partition, problem.dataset.shape().train_samples / population(problem)
    return samples if partition is None else partition.mean_samples(samples)


def weigh_gradient(spec: ExperimentSpec) -> float:
    """Work of the gradient of a sample, in scored samples."""
    return DENSE_GRADIENT if isinstance(spec.problem.model, Linear | Logistic | Mlp) else GRADIENT


def name_kind(spec: ExperimentSpec) -> str:
    """Name the kind of model and the engine of `spec`; runs that share both work at similar rates."""
    return f"{(spec.problem.model or spec.problem.dataset).kind}, engine {spec.execution.engine}"


def count_work(spec: ExperimentSpec) -> float:
    """Work of a run of `spec`, in scored samples times parameters: gradients and evaluations."""
    samples = _held(spec.problem)
    batch = samples / _batches(spec, samples)
    gradients = spec.rounds * count_gradients(spec, spec.build(), count_round(spec))
    evaluations = ceil(spec.rounds / spec.evaluation.every)
    return dimension(spec.problem) * (
        gradients * batch * weigh_gradient(spec) + evaluations * count_scored(spec)
    )


def count_scored(spec: ExperimentSpec) -> float:
    """Samples scored in an evaluation; a gradient counts as GRADIENT of them."""
    if isinstance(spec.problem.dataset, ExactProblem):
        return 0.0
    samples, evaluation = spec.problem.dataset.shape().train_samples, spec.evaluation
    names, scored = names_of(evaluation.measures), 0.0
    if "train_loss" in names:
        scored += min(samples, SAMPLE_SIZE) if evaluation.training_loss == "sample" else samples
    if any(_of_tests(name) for name in names):
        scored += _test_samples(spec.problem)
    if evaluation.population_every is None and any(map(of_population, names)):
        # The gradient, or the personal model, of every client.
        scored += GRADIENT * samples
    return scored


def _of_tests(name: str) -> bool:
    measure = measure_named(name)
    return name.startswith("test_") or (measure is not None and measure.needs == "tests")


def _test_samples(problem: Problem) -> float:
    shape, held_out = problem.dataset.shape(), getattr(problem.partition, "hold_out", None)
    return shape.test_samples if held_out is None else held_out * shape.train_samples
