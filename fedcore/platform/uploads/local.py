"""A user's own data without a service: kept in a folder of this machine, by digest."""

import os
import tempfile
from pathlib import Path
from typing import Any

from fedcore.data.uploaded import local_dataset_storage
from fedcore.data.user_datasets import UserSamples
from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.reading import checked, read
from fedcore.settings import settings

HUB = "hf://"
TABLES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}


def keep(
    source: Path | str,
    data_dir: Path | None = None,
    *,
    columns: dict[str, str] | None = None,
    image: tuple[int, int, int] | None = None,
) -> dict[str, Any]:
    """Check a file or folder, keep its content in FEDQ_DATA_DIR, and give its block
    `problem.dataset`.

    `source` is an NPZ, Parquet, CSV or JSON-lines file; a folder of images; a folder written by
    `save_to_disk` of Hugging Face's `datasets`; or `hf://OWNER/NAME` of the Hugging Face hub.
    `columns` names the columns of a table that hold `features`, `label`, `client` and `test`, where
    they are called otherwise. `image` is the shape that images are converted to: channels (1 or 3),
    height and width (default: that of the first image).

    Raises UploadError when it cannot be trained on.
    """
    if image is not None:
        _check_shape(image)
    samples = read_local(str(source), columns or {}, image)
    content, kept = samples.content, local_dataset_storage(data_dir or settings().datasets)
    path = kept.path(content.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as target:
        samples.save(target)
    Path(partial).replace(path)
    return {"kind": "local", "content": content.model_dump(mode="json")}


def _check_shape(image: object) -> None:
    if (
        not isinstance(image, (tuple, list))
        or len(image) != 3
        or not all(isinstance(size, int) and size > 0 for size in image)
        or image[0] not in (1, 3)
    ):
        raise UploadError(
            "",
            "`image` must be (channels, height, width), with 1 or 3 channels, e.g. (3, 64, 64), not"
            f" {image!r}",
        )


def read_local(source: str, columns: dict[str, str], image: tuple[int, int, int] | None) -> UserSamples:
    """The samples of a file, a folder or a data set of the hub; raises UploadError."""
    limits, path = UploadLimits(settings().upload_max_bytes), Path(source)
    # Imported here, since each takes long to load.
    if source.startswith(HUB) or _is_hugging_face(path):
        from fedcore.platform.uploads.hugging_face import hugging_face_as_parquet

        rewritten = hugging_face_as_parquet(source, columns, image)
        return read(rewritten.file, limits, rewritten.origin)
    if path.is_dir():
        from fedcore.platform.uploads.image_folder import read_image_folder

        return checked(read_image_folder(path, image))
    form = TABLES.get(path.suffix.lower())
    # Parquet as it should be is read bit by bit.
    if form is not None and (columns or form != "parquet"):
        from fedcore.platform.uploads.tables import as_parquet

        rewritten = as_parquet(path, form, columns)
        return read(rewritten.file, limits, rewritten.origin)
    if columns:
        raise UploadError("", "only tables have columns to name: omit `columns`")
    with path.open("rb") as opened:
        return read(opened, limits)


def _is_hugging_face(path: Path) -> bool:
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
