"""`problem.dataset`: the built-in data sets; a new one needs a place in DATASETS."""

from typing import Annotated

from fedcore.data.base import DatasetSpec
from fedcore.data.exact import LeastSquares, Quadratic
from fedcore.data.image_folders import CelebA, Cinic10, TinyImageNet
from fedcore.data.images import Cifar10, Cifar100, Digits, Emnist, FashionMnist, Mnist, Svhn, Torchvision
from fedcore.data.leaf import Femnist, Sent140, Shakespeare
from fedcore.data.stackoverflow import StackOverflow
from fedcore.data.synthetic import Synthetic
from fedcore.data.text import Text
from fedcore.data.uploaded import Local, Uploaded
from fedcore.families import Family

DATASETS = Family(
    "datasets",
    DatasetSpec,
    (
        Synthetic,
        Digits,
        Mnist,
        FashionMnist,
        Emnist,
        Cifar10,
        Cifar100,
        Svhn,
        Cinic10,
        TinyImageNet,
        Torchvision,
        Femnist,
        Shakespeare,
        Sent140,
        CelebA,
        StackOverflow,
        Text,
        Uploaded,
        Local,
        Quadratic,
        LeastSquares,
    ),
)

AnyDataset = Annotated[DatasetSpec, DATASETS]
