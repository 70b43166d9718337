"""A user's own data without a service: kept in a folder of this machine, by digest."""

import os
import tempfile
from pathlib import Path
from typing import Any

from fedcore.data.user_datasets import local_dataset_storage
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.reading import read
from fedcore.settings import settings


def keep(file: Path | str, data_dir: Path | None = None) -> dict[str, Any]:
    """Check an NPZ or Parquet file, keep its content in FEDQ_DATA_DIR, and give its block
    `problem.dataset`.

    Raises UploadError when it cannot be trained on.
    """
    with Path(file).open("rb") as opened:
        samples = read(opened, UploadLimits.of(settings()))
    content, kept = samples.content, local_dataset_storage(data_dir)
    path = kept.path(content.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as target:
        samples.save(target)
    Path(partial).replace(path)
    return {"kind": "uploaded", "content": content.model_dump(mode="json")}
