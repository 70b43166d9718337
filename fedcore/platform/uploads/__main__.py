"""Checks one upload in a process of its own:
`python -m fedcore.platform.uploads TARGET BYTES SAMPLES FEATURES < upload`.

What the upload holds is written to TARGET in the form it is kept in. Printed is what is in it, or,
with exit code REFUSED, what is wrong with it.
"""

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits
from fedcore.platform.uploads.reading import read
from fedcore.platform.uploads.sandbox import REFUSED, bound_memory


def main(target: str, *limits: str) -> int:
    """Check what stands on standard input; the exit code."""
    try:
        answer = _taken(sys.stdin.buffer, Path(target), UploadLimits(*map(int, limits)))
    except UploadError as error:
        return _tell({"name": error.name, "detail": error.detail}, REFUSED)
    return _tell(answer, 0)


def _taken(file: BinaryIO, target: Path, limits: UploadLimits) -> dict[str, Any]:
    bound_memory(limits)
    samples = read(file, limits)
    with target.open("wb") as kept:
        samples.save(kept)
    sizes = samples.client_sizes
    return {
        "content": samples.content.model_dump(mode="json"),
        "client_sizes": sizes._asdict() if sizes else None,
    }


def _tell(answer: dict[str, Any], code: int) -> int:
    sys.stdout.write(json.dumps(answer))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
