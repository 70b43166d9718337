"""Data sets that a plan needs and that neither workers nor this machine have."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedcore.block import kind_of
from fedcore.data.base import DatasetSpec
from fedcore.data.datasets import DATASETS
from fedcore.data.description import description_rows
from fedcore.data.exact import ExactProblem
from fedcore.data.uploaded import StoredDataset
from fedcore.measures import names_of
from fedcore.measures.fairness import Fairness
from fedcore.spec import ExperimentSpec
from fedcore.spec.problem import tests_of_clients
from fedq.schemas import PlannedData

OF_CLIENTS = frozenset(info.name for info in Fairness.infos)
"""Accuracies of clients, which are taken on training samples where no test samples belong to them."""


def datasets_of(spec: ExperimentSpec) -> list[DatasetSpec]:
    """The data sets of all arms, one of each class."""
    by_class = {type(arm.spec.problem.dataset): arm.spec.problem.dataset for arm in spec.arms()}
    return list(by_class.values())


def planned_data(spec: ExperimentSpec) -> list[PlannedData]:
    """The users' own data sets of all arms, with what was read of them."""
    used = (arm.spec.problem.dataset for arm in spec.arms())
    stored = {_name(dataset): dataset for dataset in used if isinstance(dataset, StoredDataset)}
    return [
        PlannedData(dataset=name, read=description_rows(dataset.known)) for name, dataset in stored.items()
    ]


def _name(dataset: StoredDataset) -> str:
    return f"{dataset.kind} {getattr(dataset, 'id', None) or dataset.known.digest[:12]}"


def measure_warnings(spec: ExperimentSpec) -> list[str]:
    """Warnings about figures of clients that are not taken on test samples of their own."""
    remedy = "add `hold_out` to the partition, or use data with test samples of clients"
    found: dict[str, None] = {}
    for arm in spec.arms():
        problem = arm.spec.problem
        if isinstance(problem.dataset, ExactProblem) or tests_of_clients(problem) is not False:
            continue
        names = [name for name in names_of(arm.spec.evaluation.measures) if name in OF_CLIENTS]
        if names:
            found[f"{' and '.join(names)}: taken on training samples, as clients have no test samples"] = None
        if getattr(problem.model, "batch_norm", None) == "local":
            found["batch_norm: local: tested with the mean of all batch norms, as no client has tests"] = None
    return [f"{text}; {remedy}" for text in found]


def start_warnings(spec: ExperimentSpec) -> list[str]:
    """Warnings about runs of several seeds that start from the same parameters."""
    if len(spec.seeds) == 1:
        return []
    found: dict[str, None] = {}
    for arm in spec.arms():
        model = arm.spec.problem.model
        if getattr(model, "initial", None) == "shared":
            found["`initial: shared`"] = None
        elif getattr(model, "weights", None) is not None and getattr(model, "lora", None) is None:
            found["`weights`, but for a last layer of other classes"] = None
    return [
        f"one start for all {len(spec.seeds)} seeds, that of {start}: their spread is that of cohorts,"
        " mini-batches and other draws alone"
        for start in found
    ]


def roots_in(folder: Path) -> list[str]:
    """Files and folders of built-in data sets that lie in `folder`, an FEDQ_DATA_DIR."""
    known = {root for member in DATASETS.builtin for root in (*member.roots, *member.copies)}
    return sorted(root for root in known if (folder / root).exists())


def data_warnings(
    needed: Iterable[DatasetSpec], present: Sequence[Collection[str]], nowhere: str
) -> list[str]:
    """Warnings about data sets that no place has, or only as a lossy copy.

    `present` lists the files and folders of each place, as `roots_in` returns them. `nowhere` begins
    the sentence that none of them has a data set, e.g. `no worker has`.
    """
    found = []
    for dataset in needed:
        kind, roots, copies = kind_of(type(dataset)), set(dataset.roots), dict(dataset.copies)
        if not roots or any(roots & set(place) for place in present):
            continue
        held = [name for root, name in copies.items() if any(root in place for place in present)]
        if held:
            found.append(
                f"runs will use {held[0]}, a lossy copy: {nowhere} the original data set {kind!r}; get it"
                f" by `{dataset.obtain}`"
            )
        else:
            found.append(
                f"{nowhere} the data set {kind!r}: put {dataset.files} in FEDQ_DATA_DIR, or get it by"
                f" `{dataset.obtain}`"
            )
    return found
