"""Download data sets through torchvision, which checks their checksums:
`python -m fedq.download mnist cifar10`.
"""

import argparse
from collections.abc import Sequence

from fedcore.block import kind_of
from fedcore.data.datasets import DATASETS
from fedcore.settings import settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Download the named data sets into FEDQ_DATA_DIR; those already there are left as they are."""
    known = {
        kind_of(member): member for member in DATASETS if member.obtain.startswith("python -m fedq.download ")
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=sorted(known))
    data_dir = settings().datasets
    for kind in parser.parse_args(arguments).kinds:
        known[kind].model_validate({"kind": kind}).download(data_dir)
        print(f"{kind} is in {data_dir}")


if __name__ == "__main__":
    main()
