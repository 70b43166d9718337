"""Data sets on their way to the service."""

from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from fedq.client import Client, ConflictError, InvalidRequestError, NotFoundError, UnreadableDataError
from fedq.client.bodies import PIECE_BYTES, Pieces
from fedq.client.transport import BlockingWire, Transport, finish
from tests.api.datasets.test_routes import on
from tests.platform.uploads.files import arrays, npz, parquet


@pytest.mark.slow
def test_a_file_and_the_arrays_in_it_are_the_same_data_set(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "hospitals.npz"
    file.write_bytes(npz(arrays()))
    made = client.upload(file)
    assert (made.name, made.clients, made.features) == ("hospitals.npz", 7, [4])
    assert client.upload(arrays(), "again") == client.upload(str(file)) == client.dataset(made.id) == made
    assert [item.id for item in client.datasets()] == [made.id]


def test_lists_can_be_arrays(client: Client) -> None:
    made = client.upload(
        {"features": [[0.5], [1.0], [1.5]], "label": [0, 1, 1], "client": ["a", "b", "b"]}, "small"
    )
    assert (made.clients, made.client_sizes and made.client_sizes.largest) == (2, 2)


def test_an_experiment_on_it_keeps_it(client: Client) -> None:
    made = client.upload(arrays(), "mine")
    experiment = client.submit(on(made.id))
    with pytest.raises(ConflictError, match=experiment.id):
        client.delete_dataset(made.id)
    client.cancel(experiment.id)
    client.delete_dataset(made.id)
    with pytest.raises(NotFoundError):
        client.dataset(made.id)


def test_faults_of_an_upload_are_told_with_the_array(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        client.upload(arrays(label=np.ones(60, int)), "mine")
    assert [flaw.pointer for flaw in refused.value.flaws] == ["/label"]
    with pytest.raises(UnreadableDataError, match="give the arrays a `name`"):
        client.upload(arrays())
    with pytest.raises(UnreadableDataError, match="file not found"):
        client.upload(tmp_path / "nowhere.npz")
    with pytest.raises(UnreadableDataError, match="must contain numbers, booleans or strings"):
        client.upload({"features": [[object()]], "label": [0]}, "mine")


def test_a_file_larger_than_a_piece_is_sent_whole(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "large.parquet"
    draw = np.random.default_rng(0)
    file.write_bytes(parquet({"features": draw.normal(size=(20_000, 10)), "label": np.arange(20_000) % 2}))
    assert file.stat().st_size > PIECE_BYTES
    assert client.upload(file).train_samples == 20_000


def test_a_request_that_is_sent_again_begins_at_the_beginning(tmp_path: Path) -> None:
    file, bodies = tmp_path / "file", []
    file.write_bytes(b"0123456789" * 300_000)

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        return httpx.Response(503 if len(bodies) == 1 else 200)

    transport = Transport(partial(BlockingWire, transport=httpx.MockTransport(answer)), "http://fedq", None)
    finish(transport.request("POST", "/v1/datasets", content=Pieces(file), repeatable=True))
    assert bodies == [file.read_bytes()] * 2
