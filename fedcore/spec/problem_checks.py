"""Data sets, partitions and models that do not fit each other, with the reason."""

from fedcore.errors import SpecificationError
from fedcore.spec.dataset import AnyDataset, KeyedDataset
from fedcore.spec.parameters import misfit
from fedcore.spec.partition import AnyPartition, ByKeyPartition, ShardsPartition
from fedcore.spec.problem import Problem
from fedcore.spec.shapes import data_shape


def check_fit(problem: Problem) -> None:
    """Refuse a model that cannot be trained on the data, and a partition that cannot divide them; raises SpecificationError."""
    reason = misfit(problem.model, data_shape(problem.dataset)) if problem.model else None
    if reason:
        raise SpecificationError("/problem/model", reason)
    if problem.partition is not None:
        _check_partition(problem.partition, problem.dataset)


def _check_partition(partition: AnyPartition, dataset: AnyDataset) -> None:
    shape, clients, keyed = data_shape(dataset), partition.clients, isinstance(dataset, KeyedDataset)
    if isinstance(partition, ByKeyPartition) and not keyed:
        detail = f"{dataset.kind} does not say whose each sample is; by_key needs femnist, shakespeare or sent140"
        raise SpecificationError("/problem/partition", detail)
    if isinstance(partition, ShardsPartition):
        clients *= partition.shards_per_client
    least = getattr(partition, "min_samples", 1)
    if not keyed and clients * least > shape.train_samples:
        raise SpecificationError(
            "/problem/partition", f"{clients} parts of at least {least} samples need more than the {shape.train_samples} there are"
        )
    classes = getattr(partition, "classes", 0)
    if classes > shape.classes:
        raise SpecificationError(
            "/problem/partition/classes",
            f"{dataset.kind} has {shape.classes} classes, so at most that many per client, not {classes}",
        )
