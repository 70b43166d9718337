"""Partitions: what holds for every draw, and the distributions they are named after."""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcore.data.dirichlet import DirichletPartition, InnerDirichletPartition, _among
from fedcore.data.federated import Ids
from fedcore.data.images import Digits
from fedcore.data.label_skew import ClassesPerClientPartition, ShardsPartition
from fedcore.data.owner_partitions import ByKeyPartition
from fedcore.data.partition import Partition, partition
from fedcore.data.partitions import AnyPartition
from fedcore.data.size_skew import IidPartition
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule

stats: Any = LazyModule("scipy.stats")

SEEDS = st.integers(0, 2**32 - 1)
properties = settings(max_examples=60)


def labels_of(counts: list[int]) -> Ids:
    """So many samples of each class, shuffled."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


def dirichlet(clients: int, alpha: float, min_samples: int = 1) -> DirichletPartition:
    return DirichletPartition(kind="dirichlet", clients=clients, alpha=alpha, min_samples=min_samples)


def classes_per_client(
    clients: int, classes: int, sigma: float, min_samples: int = 1
) -> ClassesPerClientPartition:
    return ClassesPerClientPartition(
        kind="classes_per_client", clients=clients, classes=classes, sigma=sigma, min_samples=min_samples
    )


PARTITIONS: dict[str, AnyPartition] = {
    "iid": IidPartition(kind="iid", clients=7),
    "dirichlet": dirichlet(7, 0.5, min_samples=3),
    "dirichlet of fednova": dirichlet(7, 0.5, min_samples=3).model_copy(update={"variant": "fednova"}),
    "dirichlet per client": dirichlet(7, 0.5, min_samples=3).model_copy(update={"variant": "per_client"}),
    "dirichlet of feddyn": dirichlet(7, 0.1, min_samples=3).model_copy(update={"variant": "feddyn"}),
    "shards": ShardsPartition(kind="shards", clients=7, shards_per_client=2),
    "classes per client": classes_per_client(7, 2, 1.5, min_samples=4),
    "classes per client with a mean": classes_per_client(7, 2, 0.2, min_samples=4).model_copy(
        update={"mean": 1.0}
    ),
}
LEFT_OVER = {"classes per client", "classes per client with a mean"}
"""Partitions that need not hand out every sample."""


@pytest.mark.parametrize("name", PARTITIONS)
@given(seed=SEEDS, counts=st.lists(st.integers(30, 60), min_size=2, max_size=6))
@properties
def test_no_sample_goes_to_two_clients_and_no_client_goes_empty(
    name: str, seed: int, counts: list[int]
) -> None:
    parts = partition(PARTITIONS[name], labels_of(counts), seed)
    held = np.concatenate(parts)
    assert len(parts) == 7
    assert min(map(len, parts)) >= getattr(PARTITIONS[name], "min_samples", 1)
    assert len(np.unique(held)) == len(held)
    assert set(held) <= set(range(sum(counts)))
    assert name in LEFT_OVER or len(held) == sum(counts)


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_run_seed_draws_the_partition_unless_it_has_its_own(name: str) -> None:
    def drawn(seed: int, own: int | None = None) -> list[list[int]]:
        spec = PARTITIONS[name].model_copy(update={"seed": own})
        return [part.tolist() for part in partition(spec, labels_of([50] * 4), seed)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1, own=5) == drawn(2, own=5) == drawn(5)


@given(seed=SEEDS, clients=st.integers(1, 40), samples=st.integers(40, 300))
@properties
def test_iid_parts_differ_in_size_by_one_at_most(seed: int, clients: int, samples: int) -> None:
    sizes = [
        len(part) for part in partition(IidPartition(kind="iid", clients=clients), labels_of([samples]), seed)
    ]
    assert max(sizes) - min(sizes) <= 1


@given(
    seed=SEEDS,
    clients=st.integers(1, 10),
    shards=st.integers(1, 4),
    shard_size=st.integers(1, 5),
    per_class=st.integers(1, 4),
)
@properties
def test_a_client_holds_no_more_classes_than_shards(
    seed: int, clients: int, shards: int, shard_size: int, per_class: int
) -> None:
    assume(clients * shards % per_class == 0)
    labels = labels_of([shard_size * per_class] * (clients * shards // per_class))
    parts = partition(ShardsPartition(kind="shards", clients=clients, shards_per_client=shards), labels, seed)
    assert {len(part) for part in parts} == {shards * shard_size}
    assert all(len(np.unique(labels[part])) <= shards for part in parts)


@pytest.mark.parametrize("variant", ["per_client", "feddyn"])
@given(
    seed=SEEDS,
    clients=st.integers(1, 30),
    alpha=st.floats(1e-6, 1e6),
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
@properties
def test_clients_that_draw_have_equal_sizes(
    variant: str, seed: int, clients: int, alpha: float, counts: list[int]
) -> None:
    assume(clients <= sum(counts))
    spec = dirichlet(clients, alpha).model_copy(update={"variant": variant})
    parts = partition(spec, labels_of(counts), seed)
    assert sorted(np.concatenate(parts)) == [*range(sum(counts))]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def drawn_one_by_one(
    variant: str, alpha: float, clients: int, counts: list[int], draw: np.random.Generator
) -> Ids:
    """Classes held [N, C], as the published codes draw them: one sample after another, again where
    a class is exhausted.
    """
    left, size = np.array(counts), sum(counts) // clients
    concentration = alpha * left / left.sum() if variant == "per_client" else np.full(len(left), alpha)
    shares, held = draw.dirichlet(concentration, clients), np.zeros((clients, len(counts)), np.int64)
    queue = np.repeat(draw.permutation(clients), size).tolist() if variant == "per_client" else None
    while held.sum() < size * clients:
        client = queue[held.sum()] if queue is not None else draw.integers(clients)
        if held[client].sum() == size:
            continue
        label = draw.choice(len(counts), p=shares[client])
        if left[label] == 0:
            open_shares = shares[client] * (left > 0)
            if open_shares.sum() < 1e-9:
                open_shares = left
            label = draw.choice(len(counts), p=open_shares / open_shares.sum())
        left[label] -= 1
        held[client, label] += 1
    return held


@pytest.mark.parametrize(("variant", "alpha"), [("per_client", 1.0), ("feddyn", 0.3)])
def test_drawn_classes_are_as_uneven_as_in_the_published_codes(variant: str, alpha: float) -> None:
    """The mean over clients of sum_c (share of class c)^2."""
    counts, clients, draws = [40, 60, 50], 5, 150
    labels, draw = labels_of(counts), np.random.default_rng(1)
    spec = dirichlet(clients, alpha).model_copy(update={"variant": variant})

    def held(seed: int) -> Ids:
        return np.array([np.bincount(labels[part], minlength=3) for part in partition(spec, labels, seed)])

    def unevenness(held: Ids) -> float:
        return float(np.square(held / 30).sum(1).mean())

    ours = [unevenness(held(seed)) for seed in range(draws)]
    theirs = [unevenness(drawn_one_by_one(variant, alpha, clients, counts, draw)) for _ in range(draws)]
    error = np.sqrt((np.var(ours) + np.var(theirs)) / draws)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error


@given(seed=SEEDS, alpha=st.floats(0.05, 1000), min_samples=st.integers(1, 20))
@properties
def test_a_client_with_its_share_gets_no_further_class(seed: int, alpha: float, min_samples: int) -> None:
    counts = [100, 200, 50, 150]
    sizes = [len(part) for part in partition(dirichlet(4, alpha, min_samples), labels_of(counts), seed)]
    assert min(sizes) >= min_samples
    assert max(sizes) <= sum(counts) / 4 + max(counts)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 10.0])
def test_class_shares_have_the_second_moment_of_the_dirichlet(alpha: float) -> None:
    """E sum_i q_i^2 = (alpha + 1) / (N alpha + 1) for q ~ Dirichlet(alpha, ..., alpha) in N
    dimensions.
    """
    clients, samples, draws = 3, 20_000, 300
    labels = np.zeros(samples, np.int64)
    shares = np.array(
        [
            [len(part) / samples for part in partition(dirichlet(clients, alpha), labels, seed)]
            for seed in range(draws)
        ]
    )
    squares = (shares**2).sum(1)
    assert abs(squares.mean() - (alpha + 1) / (clients * alpha + 1)) < 4 * squares.std() / np.sqrt(draws)


def test_a_large_alpha_is_nearly_iid() -> None:
    labels = labels_of([1_000, 2_000, 3_000])
    for part in partition(dirichlet(5, 1e6), labels, seed=0):
        np.testing.assert_allclose(np.bincount(labels[part], minlength=3), [200, 400, 600], rtol=0.02)


def test_a_small_alpha_gives_each_class_to_one_client() -> None:
    labels = labels_of([100] * 10)
    parts = partition(dirichlet(2, 1e-6), labels, seed=0)
    assert sorted(len(part) for part in parts) == [500, 500]
    assert sum(len(np.unique(labels[part])) for part in parts) == 10


@pytest.mark.parametrize("alpha", [5e-324, 1e-9, 1e-5, 1e-4, 3e-4, 1e-3])
@pytest.mark.parametrize("variant", ["per_class", "fednova"])
def test_a_tiny_alpha_gives_nearly_every_class_to_one_client(variant: str, alpha: float) -> None:
    """Dirichlet(alpha -> 0) is a random corner."""
    labels = labels_of([500] * 10)
    spec = dirichlet(10, alpha, min_samples=1).model_copy(update={"variant": variant})
    with warnings.catch_warnings(action="error"):
        parts = [part for seed in range(5) for part in partition(spec, labels, seed)]
    assert sum(len(np.unique(labels[part])) for part in parts) <= (50 if alpha < 1e-4 else 60)


@pytest.mark.parametrize("alpha", [5e-324, 1e-9, 1e-4])
@pytest.mark.parametrize(("variant", "most"), [("per_client", 1.0), ("feddyn", 2.6)])
def test_a_client_whose_class_is_exhausted_turns_to_one_other(
    variant: str, most: float, alpha: float
) -> None:
    """Clients one after another have one class each. Taking turns, they run out of it near the end;
    drawing evenly from what is left they would have 3.4 to 3.9 classes in the mean.
    """
    labels = labels_of([100] * 10)
    spec = dirichlet(50, alpha, min_samples=1).model_copy(update={"variant": variant})
    with warnings.catch_warnings(action="error"):
        parts = partition(spec, labels, 0)
    assert {len(part) for part in parts} == {20}
    assert np.mean([len(np.unique(labels[part])) for part in parts]) <= most


def test_remainder_of_a_dirichlet_distribution_is_a_dirichlet_distribution() -> None:
    """Shares of the classes that remain, renormalised: mean 1 / 2, and second moment
    (alpha + 1) / (2 alpha + 1), also where those of NumPy have underflowed.
    """
    alpha, draw, clients = 0.05, np.random.default_rng(0), 40_000
    concentration = np.full(6, alpha)
    remain = np.array([False, False, False, False, True, True])
    shares = _among(remain, draw.dirichlet(concentration, clients), concentration, draw)
    assert (shares[:, :4] == 0).all()
    np.testing.assert_allclose(shares[:, 4:].mean(0), [0.5, 0.5], atol=0.01)
    np.testing.assert_allclose((shares**2).sum(1).mean(), (alpha + 1) / (2 * alpha + 1), atol=0.003)


def test_redrawing_ends_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcore.data.partition.REDRAW_S", 0.0)
    with pytest.raises(SpecificationError, match=r"in 1 draws of .*use fewer clients") as refusal:
        partition(dirichlet(10, 0.01, min_samples=90), labels_of([500, 500]), seed=0)
    assert refusal.value.pointer == "/problem/partition"


@pytest.mark.parametrize("variant", ["per_class", "fednova"])
def test_a_draw_over_4000_clients_is_one_of_exact_cuts(variant: str) -> None:
    labels = labels_of([400] * 100)
    spec = dirichlet(4_000, 100.0, min_samples=1).model_copy(update={"variant": variant})
    parts = partition(spec, labels, 0)
    assert len(parts) == 4_000
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize(("clients", "refused"), [(1_438, False), (1_797, False), (1_798, True)])
def test_held_out_samples_are_counted_with_those_for_training(clients: int, refused: bool) -> None:
    """The digits are 1,437 and 360; `hold_out` divides them together."""
    spec = IidPartition(kind="iid", clients=clients, hold_out=0.5)
    if refused:
        with pytest.raises(SpecificationError, match=r"1798 parts .* exceed the 1797 available samples"):
            spec.check(Digits(kind="digits"))
        return
    spec.check(Digits(kind="digits"))
    assert len(spec.divide(Digits(kind="digits").load(Path()), 0).sizes) == clients


def test_given_sizes_may_use_the_test_samples_that_are_held_out() -> None:
    sizes = (1_000, 700)
    spec = InnerDirichletPartition(kind="inner_dirichlet", clients=2, alpha=1.0, sizes=sizes, hold_out=0.1)
    spec.check(Digits(kind="digits"))
    with pytest.raises(SpecificationError, match="add up to 1700, but there are 1437 samples"):
        spec.model_copy(update={"hold_out": None}).check(Digits(kind="digits"))
    with pytest.raises(SpecificationError, match="add up to 1900, but there are 1797 samples"):
        spec.model_copy(update={"sizes": (1_000, 900)}).check(Digits(kind="digits"))


def test_a_minimum_that_no_draw_reaches_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(
        SpecificationError, match="fewer clients, a larger alpha or a smaller min_samples"
    ) as refusal:
        partition(dirichlet(10, 0.01, min_samples=90), labels_of([500, 500]), seed=0)
    assert refusal.value.pointer == "/problem/partition"


@given(seed=SEEDS, classes=st.integers(1, 5), sigma=st.floats(0, 1e4))
@properties
def test_client_u_holds_the_classes_from_u_on(seed: int, classes: int, sigma: float) -> None:
    labels = labels_of([100] * 5)
    parts = partition(classes_per_client(8, classes, sigma, min_samples=10), labels, seed)
    for client, part in enumerate(parts):
        assert set(labels[part]) == {(client + step) % 5 for step in range(classes)}
        assert len(part) >= 10


def test_without_deviation_clients_of_a_class_hold_the_same() -> None:
    parts = partition(classes_per_client(20, 2, sigma=0.0), labels_of([400] * 10), seed=0)
    assert {len(part) for part in parts} == {200}


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_logarithms_of_sizes_deviate_by_sigma(sigma: float) -> None:
    """Sizes of FedProx, Section 5.1, follow a power law: n_k is proportional to lognormal(0,
    sigma).
    """
    clients = 400
    parts = partition(classes_per_client(clients, 1, sigma), np.zeros(2_000_000, np.int64), seed=0)
    logs = np.log([len(part) for part in parts])
    assert abs(logs.std() - sigma) < 4 * sigma / np.sqrt(2 * clients)


def test_a_class_with_too_few_samples_is_named() -> None:
    with pytest.raises(
        SpecificationError, match="class 1 has 3 samples too few for 6 clients of at least 10"
    ):
        partition(classes_per_client(6, 1, 2.0, min_samples=10), labels_of([100, 27]), seed=0)


MNIST_DIGITS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
"""How often each digit occurs in MNIST, training and test images together."""


def fedprox_mnist_sizes(seed: int) -> Ids:
    """How many images FedProx's `generate_niid.py` gives each of its 1,000 devices."""
    draw = np.random.default_rng(seed)
    props = draw.lognormal(0, 2.0, (10, 100, 2))
    props = (
        np.array([[[count - 1000]] for count in MNIST_DIGITS]) * props / np.sum(props, (1, 2), keepdims=True)
    )
    return np.array(
        [10 + sum(int(props[(user + j) % 10, user // 10, j]) for j in range(2)) for user in range(1000)]
    )


def test_mnist_on_1000_devices_has_the_sizes_of_fedprox() -> None:
    """Two digits each, by power law: 69,035 of the 70,000 images (FedProx, Table 1)."""
    labels = np.repeat(np.arange(10), MNIST_DIGITS)
    drawn = [partition(classes_per_client(1_000, 2, 2.0, min_samples=10), labels, seed) for seed in range(5)]
    sizes = np.array([[len(part) for part in parts] for parts in drawn])
    assert np.all(np.abs(sizes.sum(1) - 69_035) < 100)
    official = np.concatenate([fedprox_mnist_sizes(seed) for seed in range(5)])
    assert stats.ks_2samp(sizes.flatten(), official).pvalue > 0.01


def test_femnist_on_200_devices_has_the_sizes_of_fedprox() -> None:
    """5 + lognormal(4, 1) of five letters each: 18,345 images, 92 a device with a deviation of 159
    (FedProx, Table 1).
    """
    labels = np.repeat(np.arange(10), 4_000)
    spec = classes_per_client(200, 5, 1.0, min_samples=5).model_copy(update={"mean": 4.0})
    drawn = [partition(spec, labels, seed) for seed in range(5)]
    logs = np.log([len(part) for parts in drawn for part in parts])
    totals = [sum(map(len, parts)) for parts in drawn]
    assert min(totals) < 18_345 < max(totals)
    assert abs(np.median(np.exp(logs)) - (5 + np.exp(4))) < 6
    for parts in drawn:
        for client, part in enumerate(parts):
            counts = np.bincount(labels[part], minlength=10)
            mine = counts[(client + np.arange(5)) % 10]
            assert mine.sum() == len(part)
            assert mine.max() - mine.min() <= 1


def test_sizes_that_the_data_do_not_hold_are_refused() -> None:
    spec = classes_per_client(6, 1, 0.0).model_copy(update={"mean": 10.0})
    with pytest.raises(SpecificationError, match=r"samples too few .* a smaller min_samples or mean"):
        partition(spec, labels_of([100, 100]), seed=0)


KEYS = st.lists(st.integers(0, 8), min_size=1, max_size=60).map(
    lambda keys: np.unique(keys, return_inverse=True)[1].astype(np.int64)
)


@given(seed=SEEDS, keys=KEYS, least=st.integers(1, 4), data=st.data())
@properties
def test_by_key_a_client_holds_all_that_one_key_made(
    seed: int, keys: Ids, least: int, data: st.DataObject
) -> None:
    enough = [key for key in range(keys.max() + 1) if (keys == key).sum() >= least]
    assume(enough)
    clients = data.draw(st.integers(1, len(enough)))
    spec = ByKeyPartition(kind="by_key", clients=clients, min_samples=least)
    parts = partition(spec, np.zeros_like(keys), seed, keys)
    whose = [int(keys[part[0]]) for part in parts]
    assert whose == sorted(set(whose))
    assert set(whose) <= set(enough)
    assert [part.tolist() for part in parts] == [np.flatnonzero(keys == key).tolist() for key in whose]


def test_by_key_draws_its_clients_by_seed() -> None:
    keys = np.arange(50)
    spec = ByKeyPartition(kind="by_key", clients=10)
    first, second, again = (np.concatenate(partition(spec, keys, seed, keys)).tolist() for seed in (1, 2, 1))
    assert first == again != second


def test_more_clients_than_keys_are_refused_with_how_many_there_are() -> None:
    spec = ByKeyPartition(kind="by_key", clients=3, min_samples=2)
    with pytest.raises(SpecificationError, match="2 have at least 2 training samples") as refusal:
        partition(spec, np.zeros(5, np.int64), 0, np.array([0, 0, 1, 2, 2]))
    assert refusal.value.pointer == "/problem/partition/clients"


@pytest.mark.parametrize("name", ["iid", "shards", "dirichlet per client", "dirichlet of feddyn"])
def test_more_clients_than_samples_are_refused(name: str) -> None:
    spec = PARTITIONS[name].model_copy(update={"min_samples": 1} if "dirichlet" in name else {})
    with pytest.raises(SpecificationError, match="one client would hold 0 of the 5 samples") as refusal:
        partition(spec, labels_of([2, 3]), seed=0)
    assert refusal.value.pointer == "/problem/partition/clients"


def _own(parts: list[Any]) -> Partition:
    class OwnPartition(Partition):
        kind: Literal["own"] = "own"

        def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
            return parts

    return OwnPartition(clients=2)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([[0, 1], [1, 2]], "row 1 occurs 2 times"),
        ([[0, 0], [1]], "row 0 occurs 2 times"),
        ([[0], [-1]], "part 1 has row -1 of 5"),
        ([[0], [5]], "part 1 has row 5 of 5"),
        ([[0], [1.0]], "part 1 is an array (1,) of float64"),
        ([[True, False], [False, True]], "part 0 is an array (2,) of bool; use np.flatnonzero(mask)"),
        ([[[0]], [1]], "part 0 is an array (1, 1) of int64"),
        ([[0]], "it returned 1 parts for 2 clients"),
        ([[0], [1], [2]], "it returned 3 parts for 2 clients"),
    ],
)
def test_own_parts_that_are_no_division_are_refused(parts: list[Any], told: str) -> None:
    with pytest.raises(SpecificationError) as refusal:
        partition(_own([np.array(part) for part in parts]), np.arange(5), seed=0)
    assert str(refusal.value).endswith(told)
    assert refusal.value.pointer == "/problem/partition"


def test_own_parts_may_leave_samples_out_and_be_of_any_integers() -> None:
    parts = [np.array([4], np.uint8), np.array([2, 0], np.int32)]
    found = partition(_own(parts), np.arange(5), seed=0)
    assert [part.tolist() for part in found] == [[4], [2, 0]]
    assert {part.dtype for part in found} == {np.dtype(np.int64)}


@pytest.mark.parametrize("samples", [360, 361])
@pytest.mark.parametrize(
    ("spec", "known"),
    [
        (IidPartition(kind="iid", clients=7), (True, True)),
        (ShardsPartition(kind="shards", clients=6, shards_per_client=2), (True, False)),
        (
            InnerDirichletPartition(kind="inner_dirichlet", clients=3, alpha=1.0, sizes=(5, 60, 9)),
            (True, True),
        ),
        (DirichletPartition(kind="dirichlet", clients=5, alpha=1.0), (False, False)),
        (ClassesPerClientPartition(kind="classes_per_client", clients=5, classes=2), (False, False)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_counts_that_are_known_are_those_of_any_draw(
    spec: Partition, known: tuple[bool, bool], samples: int
) -> None:
    counts, told = spec.counts(samples)
    assert told is known[samples - 360]
    for seed in range(5) if told else ():
        labels = np.random.default_rng(seed).integers(0, 4, samples)
        assert [len(part) for part in partition(spec, labels, seed)] == counts.tolist()


def test_a_partition_below_one_with_known_counts_states_its_own() -> None:
    with pytest.raises(TypeError, match="`parts` of its own, so it states `counts` anew"):

        class Uneven(IidPartition):
            def parts(self, labels: Ids, seed: int, keys: Ids | None) -> list[Ids]:
                return [np.arange(1), *super().parts(labels, seed, keys)[1:]]
