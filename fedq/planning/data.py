"""Data sets that a plan needs, beside those that workers or this machine have."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedcore.block import kind_of
from fedcore.data.base import DatasetSpec
from fedcore.data.datasets import DATASETS
from fedcore.spec import ExperimentSpec


def datasets_of(spec: ExperimentSpec) -> list[DatasetSpec]:
    """The data sets of all arms, one of each class."""
    by_class = {type(arm.spec.problem.dataset): arm.spec.problem.dataset for arm in spec.arms()}
    return list(by_class.values())


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
