"""Descriptions of what was read stay short, however much was read."""

import numpy as np

from fedcore.data.description import SHOWN, Description, UploadedContent, description_rows, shorten_name
from fedcore.data.user_datasets import Origin
from tests.platform.uploads.files import arrays, npz, take


def test_long_lists_are_shortened_with_the_number_of_others() -> None:
    held = arrays(
        client=np.array([f"clinic {row:02}" for row in range(60)]), test=None, label=np.arange(60) % 30
    )
    rows = description_rows(take(npz(held)).content)
    shown = ", ".join(f"clinic {row:02} (1 + 0)" for row in range(SHOWN))
    assert rows["clients"] == f"client, 60 clients: {shown}, and 48 more"
    assert rows["label"].endswith("10 (2 + 0), 11 (2 + 0), and 18 more")


def test_samples_left_out_are_counted_too() -> None:
    samples = take(npz(arrays()))
    many = tuple(f"file {number}" for number in range(40))
    described = type(samples)(
        samples.features, samples.label, samples.clients, samples.test, Origin(left_out=many)
    ).content
    assert described.description is not None
    assert described.description.left_out == (*many[: SHOWN - 1], "and 29 more")


def test_names_are_bounded_and_printable() -> None:
    assert shorten_name("a\x1b[2J\n") == "a?[2J?"
    assert len(shorten_name("x" * 1_000)) == 60


def test_real_labels_are_described_by_their_range() -> None:
    content = take(npz(arrays(label=np.linspace(-1, 2.5, 60)))).content
    assert description_rows(content)["label"] == "label, real numbers, -1 to 2.5"


def test_a_specification_may_omit_the_description() -> None:
    content = take(npz(arrays())).content
    bare = UploadedContent.model_validate(content.model_dump(exclude={"description"}))
    assert description_rows(bare) == {
        "samples": "48 training + 12 test",
        "features": "shape 4",
        "label": "label, 3 classes",
        "clients": "client, 7 clients",
        "test samples": "each belongs to its client",
    }
    assert content.description == Description.model_validate(content.model_dump()["description"])
