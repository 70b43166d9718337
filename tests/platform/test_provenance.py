"""Stored models are those that the provenance of their run names."""

import io
from hashlib import sha256

import pytest
import torch
from safetensors.torch import save

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.provenance import PIECE_BYTES, model_digests, model_pieces

MODELS = {
    "no tensors": {},
    "one number": {"w": torch.tensor(1.0)},
    "names and types of all kinds": {
        'größe "\\/\n\x1f\x7f\u2028': torch.ones(3, 5, dtype=torch.float16),
        "z": torch.tensor([True]),
        "layer.0.weight": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "empty": torch.ones(0, 3),
        "a": torch.arange(2),
    },
    "several pieces": {"w": torch.ones(PIECE_BYTES), "b": torch.zeros(1)},
}
ABOUT = {"format": "pt", "run": "run_1"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("about", [ABOUT, None])
def test_a_stored_model_is_given_out_as_it_is(name: str, about: dict[str, str] | None) -> None:
    content, digest = save(MODELS[name], about), sha256(save(MODELS[name])).hexdigest()
    file = io.BytesIO(content)
    assert b"".join(model_pieces(file, "key", digest)) == content
    assert file.closed


def test_a_model_whose_digest_was_not_noted_is_given_out_as_it_is() -> None:
    assert b"".join(model_pieces(io.BytesIO(b"anything"), "key", None)) == b"anything"


def test_model_of_another_length_is_not_given_out() -> None:
    model = MODELS["several pieces"]
    content, digest = save(model, ABOUT), sha256(save(model)).hexdigest()
    headers = (b"[]", b"{", b"\xff", b'{"a":1}', b'{"a":{"b":1}}', b'{"a":{"data_offsets":[]}}')
    damaged = [content[:length] for length in (0, 7, 20, 100, PIECE_BYTES, len(content) - 1)]
    damaged += [content + b"x", b"\xff" * 8 + content[8:]]
    damaged += [len(header).to_bytes(8, "little") + header for header in headers]
    for other in damaged:
        file = io.BytesIO(other)
        with pytest.raises(ResourceNotFoundError, match=r"^run/model in the storage is damaged"):
            next(model_pieces(file, "run/model", digest))
        assert file.closed


@pytest.mark.parametrize("place", [60, 2 * PIECE_BYTES, -1])
def test_a_model_with_another_content_is_never_given_out_whole(place: int) -> None:
    model = MODELS["several pieces"]
    content = bytearray(save(model, ABOUT))
    content[place] ^= 1
    pieces = model_pieces(io.BytesIO(bytes(content)), "key", sha256(save(model)).hexdigest())
    given: list[bytes] = []
    with pytest.raises(ResourceNotFoundError):
        given.extend(pieces)
    assert sum(map(len, given)) < len(content)


def test_a_model_that_is_both_the_best_and_the_final_one_is_one_file() -> None:
    one, two = "1" * 64, "2" * 64
    assert model_digests(None, {}) == {}
    assert model_digests("run/model", {}) == {"run/model": None}
    both = {"model_sha256": one, "best_model": {"sha256": one}}
    assert model_digests("run/model", both) == {"run/model": one}
    two_models = {"model_sha256": one, "best_model": {"sha256": two}}
    assert model_digests("run/model", two_models) == {"run/model": one, "run/best-model": two}
