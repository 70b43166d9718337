"""Checks across blocks of a specification: combinations that are rejected, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.server import OwnServer, SgdServer
from fedcore.data.datasets import AnyDataset, KeyedDataset, data_shape
from fedcore.data.exact import Quadratic
from fedcore.data.partition import AnyPartition
from fedcore.errors import SpecificationError
from fedcore.measures import MEASURES
from fedcore.spec.model import Imported, Linear, Logistic, Mlp
from fedcore.spec.participation import (
    AnyParticipation,
    Bernoulli,
    ByShare,
    Full,
    Trace,
    WithoutReplacement,
    WithReplacement,
)
from fedcore.spec.problem import Problem
from fedcore.spec.search_checks import check_early_stopping
from fedcore.spec.shapes import dimension, misfit, population
from fedcore.spec.systems import (
    AnyBatch,
    AnyWork,
    AvailabilityTrace,
    Devices,
    PerClient,
    PerClientRate,
    RandomAvailability,
    Stragglers,
    Systems,
    WorkTrace,
)

if TYPE_CHECKING:
    from fedcore.spec.experiment import ExperimentSpec
    from fedcore.spec.systems import Probability


def check_fit(problem: Problem) -> None:
    """Refuse a model that cannot be trained on the data, and a partition that cannot divide them.

    Raises SpecificationError.
    """
    reason = misfit(problem.model, data_shape(problem.dataset)) if problem.model else None
    if reason:
        raise SpecificationError("/problem/model", reason)
    if problem.partition is not None:
        _check_partition(problem.partition, problem.dataset)


def _check_partition(partition: AnyPartition, dataset: AnyDataset) -> None:
    shape, parts, keyed = data_shape(dataset), partition.part_count(), isinstance(dataset, KeyedDataset)
    if partition.by_owner and not keyed:
        detail = (
            f"{dataset.kind} does not record the owner of each sample; {partition.kind} requires femnist,"
            " shakespeare or sent140"
        )
        raise SpecificationError("/problem/partition", detail)
    least = partition.least_samples()
    if not keyed and parts * least > shape.train_samples:
        raise SpecificationError(
            "/problem/partition",
            f"{parts} parts of at least {least} samples exceed the {shape.train_samples} available samples",
        )
    classes = getattr(partition, "classes", 0)
    if classes > shape.classes:
        raise SpecificationError(
            "/problem/partition/classes",
            f"must be at most {shape.classes}, the number of classes of {dataset.kind}, not {classes}",
        )


def check_systems(systems: Systems, scheme: AnyParticipation, clients: int) -> None:
    """Raises SpecificationError where availability, devices, deadline and participation do not fit
    N = `clients` or one another.
    """
    if isinstance(scheme, Bernoulli):
        _check_probability(scheme.probability, "/participation", clients)
    _check_unbiased(systems, scheme)
    _check_availability(systems, clients)
    if systems.devices is not None:
        _check_devices(systems.devices, clients)
    elif systems.deadline is not None:
        raise SpecificationError(
            "/systems/deadline", "requires `devices`; give their speed, or omit the deadline"
        )


def _check_availability(systems: Systems, clients: int) -> None:
    availability = systems.availability
    if availability is None:
        return
    if isinstance(availability, RandomAvailability):
        _check_probability(availability.probability, "/systems/availability", clients)
    if isinstance(availability, AvailabilityTrace):
        strangers = [client for row in availability.rounds for client in row if client >= clients]
        if strangers:
            raise SpecificationError(
                "/systems/availability/rounds",
                f"client {strangers[0]} does not exist; the {clients} clients are numbered from 0",
            )


def _check_unbiased(systems: Systems, scheme: AnyParticipation) -> None:
    """Weights that divide by a client's chance to take part need that chance, as do those of S2."""
    if scheme.weighting != "unbiased" and not (
        isinstance(scheme, WithoutReplacement) and scheme.weighting is None
    ):
        return
    for field, chance in (("availability", "be drawn"), ("deadline", "be on time")):
        if getattr(systems, field) is not None:
            raise SpecificationError(
                "/participation/weighting",
                f"with `systems.{field}`, a client's probability to {chance} is unknown; use `samples` or"
                " `uniform`",
            )


def _check_probability(probability: Probability, pointer: str, clients: int) -> None:
    if isinstance(probability, tuple) and len(probability) != clients:
        raise SpecificationError(
            f"{pointer}/probability",
            f"must be one value, or one for each of the {clients} clients, not {len(probability)}",
        )


def _check_devices(devices: Devices, clients: int) -> None:
    for field in type(devices).model_fields:
        rate = getattr(devices, field)
        if isinstance(rate, PerClientRate) and len(rate.values) != clients:
            raise SpecificationError(
                f"/systems/devices/{field}/values",
                f"must have one value for each of the {clients} clients, not {len(rate.values)}",
            )


MAX_PARAMETERS = 1_000_000_000
MAX_RECORDED_PARAMETERS = 1_000
MAX_LISTED_CLIENTS = 1_000
LOSES_PAIRS = 0.75
"""From this share of stragglers on round(2 (1 - fraction)) is 0: cohorts of two clients lose
both.
"""


def check(spec: ExperimentSpec) -> None:
    """Refuse combinations that no single block can see; raises SpecificationError."""
    check_fit(spec.problem)
    _check_engine(spec)
    clients, dim = population(spec.problem), dimension(spec.problem)
    if dim > MAX_PARAMETERS:
        raise SpecificationError(
            "/problem/model", f"a model may have at most {MAX_PARAMETERS} parameters, not {dim}"
        )
    _check_length(spec)
    _check_participation(spec, clients)
    _check_weighting(spec)
    for field, work in (
        ("epochs", spec.systems.epochs),
        ("steps", spec.systems.steps),
        ("batch_size", spec.systems.batch_size),
    ):
        _check_work(work, f"/systems/{field}", clients, spec.rounds)
    check_systems(spec.systems, spec.participation, clients)
    _check_compression(spec)
    _check_lost_messages(spec)
    _check_exact(spec)
    _check_server(spec)
    _check_evaluation(spec, clients, dim)
    check_early_stopping(spec)


def _check_evaluation(spec: ExperimentSpec, clients: int, dim: int) -> None:
    listed = [name for name in spec.evaluation.measures if MEASURES[name].per_client]
    if listed and clients > MAX_LISTED_CLIENTS:
        raise SpecificationError(
            "/evaluation/measures",
            f"{listed[0]} supports at most {MAX_LISTED_CLIENTS} clients, not {clients}",
        )
    if spec.evaluation.record_parameters and dim > MAX_RECORDED_PARAMETERS:
        raise SpecificationError(
            "/evaluation/record_parameters",
            f"at most {MAX_RECORDED_PARAMETERS} parameters can be recorded, but the model has {dim}",
        )


def _check_engine(spec: ExperimentSpec) -> None:
    if spec.execution.engine == "compiled" and not isinstance(
        spec.problem.model, Linear | Logistic | Mlp | Imported
    ):
        raise SpecificationError(
            "/execution/engine",
            "`compiled` supports only dense networks (`linear`, `logistic`, `mlp`); use `auto`",
        )


def _check_server(spec: ExperimentSpec) -> None:
    algorithm, server = spec.algorithm, spec.server
    if server is not None and algorithm.server_lr != type(algorithm).model_fields["server_lr"].default:
        raise SpecificationError(
            "/server", "give the server's step size once: in `server` or as `algorithm.server_lr`"
        )
    given = algorithm.server_lr if server is None else server.lr
    plain = server is None or isinstance(server, OwnServer | SgdServer)
    if algorithm.averages_exactly and not (plain and given == 1.0):
        pointer = "/algorithm/server_lr" if server is None else "/server"
        raise SpecificationError(
            pointer,
            f"{algorithm.kind} requires x to be the average of the clients; otherwise its fixed point is not"
            " an optimum: omit this",
        )


def _check_length(spec: ExperimentSpec) -> None:
    given = [spec.local.epochs, spec.local.steps, spec.systems.epochs, spec.systems.steps]
    if all(length is None for length in given):
        raise SpecificationError("/local", "give the local work as `epochs` or `steps`, here or in `systems`")
    if (spec.local.epochs and spec.systems.steps) or (spec.local.steps and spec.systems.epochs):
        raise SpecificationError("/systems", "`local` and `systems` must both use epochs or both use steps")
    stragglers = spec.systems.stragglers
    if stragglers and stragglers.unit == "epochs" and (spec.local.steps or spec.systems.steps):
        raise SpecificationError(
            "/systems/stragglers/unit", "the local work is given in steps, so the unit must be `steps`"
        )


def _check_participation(spec: ExperimentSpec, clients: int) -> None:
    scheme = spec.participation
    if isinstance(scheme, Trace):
        if len(scheme.rounds) < spec.rounds:
            raise SpecificationError(
                "/participation/rounds",
                f"must have a row for each of the {spec.rounds} rounds, not {len(scheme.rounds)}",
            )
        strangers = [client for row in scheme.rounds for client in row if client >= clients]
        if strangers:
            raise SpecificationError(
                "/participation/rounds",
                f"client {strangers[0]} does not exist; the {clients} clients are numbered from 0",
            )
    elif not isinstance(scheme, Full | Bernoulli):
        size = scheme.cohort_size(clients)
        with_repeats = scheme.kind == "with_replacement"
        if size > clients and not with_repeats:
            raise SpecificationError(
                "/participation/clients_per_round",
                f"{size} clients cannot be drawn from {clients} without replacement; use at most {clients}",
            )


def _check_weighting(spec: ExperimentSpec) -> None:
    scheme = spec.participation
    reason = _misweighted(scheme, spec.algorithm) or _lossy(scheme, spec.systems.stragglers)
    if reason:
        raise SpecificationError("/participation/weighting", reason)
    scales_model = (
        isinstance(scheme, WithoutReplacement) and scheme.weighting is None and not scheme.transformed
    )
    if scales_model and not spec.algorithm.averages_models:
        raise SpecificationError(
            "/participation",
            f"S2 averages models; {spec.algorithm.kind} averages updates: add `weighting: unbiased` or"
            " `transformed: true`, or use `uniform`",
        )


def _misweighted(scheme: AnyParticipation, algorithm: AlgorithmSpec) -> str | None:
    """The reason why the algorithm cannot be run with the scheme's weighting."""
    kind = algorithm.kind
    match scheme.weighting:
        case "original" | "unbiased" if algorithm.averages_exactly:
            return (
                f"{kind} requires x to be the average of the clients' models, but `{scheme.weighting}`"
                " weights do not sum to 1: its fixed point would not be an optimum; use `uniform` or"
                " `samples`"
            )
        case "unbiased" if isinstance(scheme, Trace):
            return "a trace has no sampling probabilities; use `samples` or `uniform`"
        case "unbiased" if isinstance(scheme, ByShare):
            return (
                "the inclusion probabilities of by_share have no closed form; use `uniform`, or"
                " `with_replacement`, which is unbiased"
            )
        case "original" if isinstance(scheme, WithReplacement | ByShare):
            return (
                f"{scheme.kind} already draws with probability p_i, so weights p_i would count it twice; use"
                " `uniform` or another scheme"
            )
        case str() if algorithm.own_weights:
            return f"{kind} computes its own weights: omit `weighting`"
        case _:
            return None


def _lossy(scheme: AnyParticipation, stragglers: Stragglers | None) -> str | None:
    """The reason why `unbiased` weights are not known where stragglers are dropped."""
    if (
        scheme.weighting != "unbiased"
        or stragglers is None
        or stragglers.policy != "drop"
        or stragglers.fraction < LOSES_PAIRS
    ):
        return None
    if isinstance(scheme, WithReplacement) or (
        isinstance(scheme, Bernoulli) and isinstance(scheme.probability, tuple)
    ):
        return (
            f"if a fraction of {stragglers.fraction:g} is dropped, the probability of losing a whole cohort"
            " has no closed form; use `uniform` or `samples`, `policy: accept_partial`, or a scheme with"
            " equal probabilities"
        )
    return None


def _check_work(work: AnyWork | AnyBatch | None, pointer: str, clients: int, rounds: int) -> None:
    if isinstance(work, PerClient) and len(work.values) != clients:
        raise SpecificationError(
            f"{pointer}/values",
            f"must have one value for each of the {clients} clients, not {len(work.values)}",
        )
    if isinstance(work, WorkTrace):
        if len(work.rounds) < rounds:
            raise SpecificationError(
                f"{pointer}/rounds",
                f"must have a row for each of the {rounds} rounds, not {len(work.rounds)}",
            )
        wrong = next((row for row in work.rounds if len(row) != clients), None)
        if wrong is not None:
            raise SpecificationError(
                f"{pointer}/rounds",
                f"each row must have an entry for each of the {clients} clients, not {len(wrong)}",
            )


def _check_compression(spec: ExperimentSpec) -> None:
    dim = dimension(spec.problem)
    for link in ("uplink", "downlink"):
        reason = getattr(spec.compression, link).misfit(dim)
        if reason:
            raise SpecificationError(f"/compression/{link}", reason)


def _check_lost_messages(spec: ExperimentSpec) -> None:
    downlink = spec.compression.downlink
    if spec.algorithm.averages_exactly and downlink.loses_part:
        raise SpecificationError(
            "/compression/downlink",
            f"{spec.algorithm.kind} requires x to be the average of the clients' models; with {downlink.kind}"
            " and no error feedback, its fixed point would not be an optimum: add `error_feedback: true`",
        )


def _check_exact(spec: ExperimentSpec) -> None:
    dataset = spec.problem.dataset
    if isinstance(dataset, Quadratic) and (spec.local.batch_size != "full" or spec.systems.batch_size):
        raise SpecificationError(
            "/local/batch_size",
            "a quadratic has no samples: use `full`, and `gradient_noise` for stochastic gradients",
        )
