"""Reads damaged Parquet files, each in a process forked for it: Arrow itself ends its process on
some. Prints how each ended.
"""

import os
import signal
from contextlib import suppress

import numpy as np

from fedcore.errors import UploadError
from tests.platform.uploads.files import arrays, parquet, take

FILES = 80
ENDS = {0: "read", 1: "refused", -signal.SIGABRT: "aborted"}


def main() -> None:
    """Flip three bits of each file, anywhere behind its magic bytes."""
    draw = np.random.default_rng(0)
    wholes = [
        parquet(arrays()),
        parquet(arrays(client=np.arange(60) % 7), lists=True, compression="none", use_dictionary=False),
    ]
    for number in range(FILES):
        broken = bytearray(wholes[number % 2])
        for place in draw.integers(4, len(broken), size=3):
            broken[place] ^= 1 << int(draw.integers(8))
        print(_end(bytes(broken)))  # noqa: T201 - what the test reads


def _end(data: bytes) -> str:
    process = os.fork()
    if process == 0:
        code = 2
        with suppress(BaseException):
            code = _read(data)
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ENDS.get(code, f"code {code}")


def _read(data: bytes) -> int:
    try:
        take(data)
    except UploadError:
        return 1
    return 0


if __name__ == "__main__":
    main()
