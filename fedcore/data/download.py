"""Download data sets through torchvision, which checks their checksums:
`python -m fedcore.data.download mnist cifar10`.
"""

import argparse
from collections.abc import Sequence

from fedcore.data.images import image_datasets
from fedcore.settings import settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Download the named data sets into FEDQ_DATA_DIR; those already there are left as they are."""
    known = image_datasets()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=sorted(known))
    data_dir = settings().data_dir.expanduser()
    for kind in parser.parse_args(arguments).kinds:
        known[kind].open(root=data_dir, train=True, download=True)
        print(f"{known[kind].name} is in {data_dir}")


if __name__ == "__main__":
    main()
