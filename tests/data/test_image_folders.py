"""Data sets of many files: read from generated files in their true layouts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.data.base import DatasetSpec
from fedcore.data.federated import validate_samples
from fedcore.data.image_folders import CelebA, Cinic10, TinyImageNet
from fedcore.data.leaf import Sent140
from fedcore.data.stackoverflow import StackOverflow
from fedcore.errors import DataUnavailableError
from tests.data import folder_files, leaf_files
from tests.data.test_leaf import keys


def shades(features: torch.Tensor, mean: float, deviation: float) -> list[float]:
    """The shade from 0 to 255 of images that have one."""
    assert (features.flatten(2).std(2) < 0.02).all()
    return (255 * (features[:, 0].mean((1, 2)) * deviation + mean)).tolist()


def test_cinic10_numbers_the_classes_of_cifar10_alphabetically(tmp_path: Path) -> None:
    folder_files.write_cinic10(tmp_path)
    data = Cinic10(kind="cinic10").load(tmp_path).numbers()
    assert data.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    expected = [20 * label + number for label in range(10) for number in range(2)]
    np.testing.assert_allclose(shades(data.train.features, 0.47889522, 0.24205776), expected, atol=1e-3)
    np.testing.assert_allclose(
        shades(data.test.features, 0.47889522, 0.24205776), np.array(expected) + 4, atol=1e-3
    )
    validate_samples(data, Cinic10(kind="cinic10").shape())


def test_hidden_folders_and_files_are_no_classes_and_images(tmp_path: Path) -> None:
    folder_files.write_cinic10(tmp_path)
    expected = Cinic10(kind="cinic10").load(tmp_path)
    for place in (".ipynb_checkpoints/n0.png", "__MACOSX/n0.png", "bird/._n0.png"):
        for part in ("train", "test"):
            folder_files.shade(tmp_path / "cinic-10" / part / place, 9)
    found = Cinic10(kind="cinic10").load(tmp_path)
    assert torch.equal(found.train.features, expected.train.features)
    assert torch.equal(found.train.labels, expected.train.labels)
    assert torch.equal(found.test.features, expected.test.features)


def test_validation_images_of_cinic10_may_be_trained_on(tmp_path: Path) -> None:
    folder_files.write_cinic10(tmp_path)
    data = Cinic10(kind="cinic10", validation=True).load(tmp_path).numbers()
    assert (len(data.train), len(data.test)) == (40, 20)


def test_tiny_imagenet_numbers_classes_as_its_list_does_and_tests_on_validation_images(
    tmp_path: Path,
) -> None:
    folder_files.write_tiny_imagenet(tmp_path)
    data = TinyImageNet(kind="tiny_imagenet").load(tmp_path).numbers()
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [1, 0]
    np.testing.assert_allclose(
        shades(data.train.features, 0.4802, 0.2770), [0, 1, 2, 100, 101, 102], atol=1.5
    )
    assert data.train.features.shape == (6, 3, 64, 64)


def test_celeba_is_read_by_celebrity_and_resized(tmp_path: Path) -> None:
    folder_files.write_celeba(tmp_path)
    data = CelebA(kind="celeba").load(tmp_path).numbers()
    assert data.train.features.shape == (3, 3, 84, 84)
    np.testing.assert_allclose(shades(data.train.features, 0, 1), [50, 100, 150], atol=1.5)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([1, 0, 1], [0, 1])
    assert keys(data) == ([0, 0, 1], [0, -1])


@pytest.mark.parametrize(
    "spec",
    [
        Cinic10(kind="cinic10"),
        TinyImageNet(kind="tiny_imagenet"),
        CelebA(kind="celeba"),
        StackOverflow(kind="stackoverflow"),
        StackOverflow(kind="stackoverflow", form="leaf"),
    ],
    ids=lambda spec: spec.kind,
)
def test_missing_files_are_reported_with_where_to_put_them(spec: DatasetSpec, tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match="FEDQ_DATA_DIR"):
        spec.load(tmp_path).numbers()


@pytest.mark.parametrize(
    ("file", "spec", "told"),
    [
        (
            "tiny-imagenet-200/val/val_annotations.txt",
            TinyImageNet(kind="tiny_imagenet"),
            "a line for each validation image",
        ),
        (
            "stackoverflow/stackoverflow.word_count",
            StackOverflow(kind="stackoverflow"),
            "a line for each word",
        ),
        ("glove.6B.300d.txt", Sent140(kind="sent140"), "a vector for none of the words"),
    ],
)
def test_an_empty_list_is_not_taken_for_no_samples_or_no_words(
    file: str, spec: DatasetSpec, told: str, tmp_path: Path
) -> None:
    folder_files.write_tiny_imagenet(tmp_path)
    folder_files.write_stackoverflow_of_tff(tmp_path)
    leaf_files.write_sent140(tmp_path)
    (tmp_path / file).write_text("")
    with pytest.raises(DataUnavailableError, match=told):
        spec.load(tmp_path)


@pytest.mark.parametrize(
    ("write", "spec", "file"),
    [
        (folder_files.write_cinic10, Cinic10(kind="cinic10"), "cinic-10/test/bird/n0.png"),
        (folder_files.write_celeba, CelebA(kind="celeba"), "celeba/data/raw/img_align_celeba/000003.jpg"),
        (
            folder_files.write_stackoverflow_of_tff,
            StackOverflow(kind="stackoverflow"),
            "stackoverflow/stackoverflow_test.h5",
        ),
    ],
    ids=["cinic10", "celeba", "stackoverflow"],
)
def test_a_file_cut_short_is_reported(
    write: Callable[[Path], None], spec: DatasetSpec, file: str, tmp_path: Path
) -> None:
    write(tmp_path)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataUnavailableError, match=f"cannot be read.*{path.name}: "):
        spec.load(tmp_path).numbers()
