import pytest

from fedq.validation_errors import join_pointer, pointer_to

BLOCK = {
    "problem": {"dataset": {"kind": "quadratic", "clients": [{"H": 1}]}},
    "sweep": {"local.lr": [0.1]},
    "server": {"lr": "x"},
}


@pytest.mark.parametrize(
    ("location", "pointer"),
    [
        (("problem", "dataset", "quadratic", "clients", 0, "H"), "/problem/dataset/clients/0/H"),
        (("problem", "dataset", "quadratic", "missing"), "/problem/dataset/missing"),
        (("server", "own", "lr"), "/server/lr"),
        (("sweep", "local.lr", 0, "float"), "/sweep/local.lr/0"),
        (("rounds",), "/rounds"),
        ((), ""),
    ],
)
def test_a_location_points_into_the_document_without_tags_and_labels(
    location: tuple[str | int, ...], pointer: str
) -> None:
    assert pointer_to(location, BLOCK) == pointer


def test_slashes_and_tildes_in_keys_are_escaped() -> None:
    assert join_pointer(["a/b", "c~d", 0]) == "/a~1b/c~0d/0"
