"""Small CINIC-10, Tiny ImageNet, CelebA and Stack Overflow in their true layouts."""

from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from tests.data import leaf_files

CINIC_CLASSES = [
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
]  # fmt: skip
SENTENCES = {
    "train": {"00000001": ["how do i sort a list", "use sorted"], "00000002": ["why"], "00000007": []},
    "test": {"00000001": ["sort it"], "00000003": ["how"]},
}


def shade(path: Path, value: int, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> None:
    """An image of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, value, value)).save(path)


def write_cinic10(root: Path) -> None:
    for place, part in enumerate(("train", "valid", "test")):
        for label, name in enumerate(CINIC_CLASSES):
            for number in range(2):
                shade(root / "cinic-10" / part / name / f"n{number}.png", 20 * label + 2 * place + number)


def write_tiny_imagenet(root: Path) -> None:
    """Two classes, not in alphabetical order; some images of the published set are grey."""
    folder = root / "tiny-imagenet-200"
    folder.mkdir()
    (folder / "wnids.txt").write_text("n02124075\nn01443537\n")
    for label, name in enumerate(("n02124075", "n01443537")):
        for number in range(3):
            path = folder / "train" / name / "images" / f"{name}_{number}.JPEG"
            shade(path, 100 * label + number, (64, 64), "L" if number == 2 else "RGB")
    rows = []
    for number, name in enumerate(("n01443537", "n02124075")):
        shade(folder / "val" / "images" / f"val_{number}.JPEG", 50 + number, (64, 64))
        rows.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))


def write_celeba(root: Path) -> None:
    """In `data`, where a copy of LEAF has them; portraits are 178 x 218."""
    data = root / "celeba" / "data"
    for number in range(1, 6):
        shade(data / "raw" / "img_align_celeba" / f"{number:06}.jpg", 50 * number, (178, 218))
    names = [f"{number:06}.jpg" for number in range(1, 6)]
    leaf_files.write(data / "train", "all.json", {"10": (names[:2], [1, 0]), "77": (names[2:3], [1])})
    leaf_files.write(data / "test", "all.json", {"10": (names[3:4], [0]), "99": (names[4:], [1])})


def write_word_counts(root: Path) -> None:
    (root / "stackoverflow").mkdir(exist_ok=True)
    counts = "how 900\na 800\nsort 700\nuse 600\nlist 5\n"
    (root / "stackoverflow" / "stackoverflow.word_count").write_text(counts)


def write_stackoverflow_of_tff(root: Path) -> None:
    """HDF5: examples/USER/tokens, beside other fields of each sentence."""
    write_word_counts(root)
    for part, users in SENTENCES.items():
        with h5py.File(root / "stackoverflow" / f"stackoverflow_{part}.h5", "w") as file:
            for user, texts in users.items():
                group = file.create_group(f"examples/{user}")
                group["tokens"] = np.array([text.encode() for text in texts], h5py.string_dtype())
                group["score"] = np.zeros(len(texts), np.int64)


def write_stackoverflow_of_leaf(root: Path) -> None:
    write_word_counts(root)
    for part, users in SENTENCES.items():
        held = {user: ([text.split() for text in texts], [""] * len(texts)) for user, texts in users.items()}
        leaf_files.write(root / "stackoverflow" / part, "all.json", held)
