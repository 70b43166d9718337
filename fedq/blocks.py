"""All blocks of a specification, for programs that write one in Python: `from fedq import Digits`."""

from fedcore.algorithms.aggregators import MeanAggregator
from fedcore.algorithms.apfl import Apfl
from fedcore.algorithms.ditto import Ditto
from fedcore.algorithms.fair import Afl, QFedAvg
from fedcore.algorithms.fedavg import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from fedcore.algorithms.fedaware import FedAware
from fedcore.algorithms.feddc import FedDc
from fedcore.algorithms.feddyn import FedDyn
from fedcore.algorithms.fedexp import FedExp
from fedcore.algorithms.fedlin import FedLin
from fedcore.algorithms.fedmgda import FedMgda
from fedcore.algorithms.fednova import FedNova
from fedcore.algorithms.fedprox import FedProx
from fedcore.algorithms.fedsam import FedSam
from fedcore.algorithms.fedsplit import FedSplit
from fedcore.algorithms.fedsvrg import FedSvrg
from fedcore.algorithms.ifca import Ifca
from fedcore.algorithms.mimelite import MimeLite
from fedcore.algorithms.per_fedavg import PerFedAvg, PFedMe
from fedcore.algorithms.personal_layers import FedPer, FedRep, LgFedAvg
from fedcore.algorithms.robust import (
    BulyanAggregator,
    CentredClippingAggregator,
    GeometricMedianAggregator,
    KrumAggregator,
    MedianAggregator,
    NormBoundingAggregator,
    TrimmedMeanAggregator,
)
from fedcore.algorithms.scaffold import Scaffold
from fedcore.algorithms.server import (
    AdagradServer,
    AdamServer,
    MomentumServer,
    OwnServer,
    SgdServer,
    YogiServer,
)
from fedcore.algorithms.vrlsgd import VrlSgd
from fedcore.compression import Compression, NoCompression
from fedcore.compression.natural import Natural
from fedcore.compression.qsgd import QSGD
from fedcore.compression.rand_k import RandK
from fedcore.compression.sign import Sign
from fedcore.compression.top_k import TopK
from fedcore.data.augment import CropFlip, Cutout
from fedcore.data.description import Description, SampleGroup
from fedcore.data.dirichlet import DirichletPartition, InnerDirichletPartition
from fedcore.data.exact import GeneratedProblem, LeastSquares, LeastSquaresClient, Quadratic, QuadraticClient
from fedcore.data.image_folders import CelebA, Cinic10, TinyImageNet
from fedcore.data.images import Cifar10, Cifar100, Digits, Emnist, FashionMnist, Mnist, Svhn, Torchvision
from fedcore.data.label_skew import ClassesPerClientPartition, ShardsPartition
from fedcore.data.leaf import Femnist, Sent140, Shakespeare
from fedcore.data.owner_partitions import ByKeyPartition, DomainPartition
from fedcore.data.size_skew import (
    FeatureNoisePartition,
    FeatureScalePartition,
    IidPartition,
    QuantitySkewPartition,
    RotatedPartition,
)
from fedcore.data.stackoverflow import StackOverflow
from fedcore.data.synthetic import Synthetic
from fedcore.data.text import Text
from fedcore.data.uploaded import Local, Uploaded, UploadedContent
from fedcore.measures.base import MeasureSpec
from fedcore.models.convolutional import Cnn, DropoutCnn, FedawareCnn, FedbnCnn, Resnet18, Vgg11
from fedcore.models.dense import Linear, Logistic, Mlp
from fedcore.models.hugging_face import CausalLm, Lora, SequenceClassifier
from fedcore.models.imported import Imported
from fedcore.models.losses import CrossEntropy, SquaredError
from fedcore.models.published import TimmNetwork, TorchvisionNetwork
from fedcore.models.recurrent import CharLstm, SentLstm
from fedcore.privacy.client_level import AdaptiveClipping, ClientLevelPrivacy
from fedcore.privacy.example_level import ExampleLevelPrivacy
from fedcore.privacy.local import LocalPrivacy
from fedcore.privacy.tree import TreePrivacy
from fedcore.solvers.optimisers import Adam, AdamW, Sgd
from fedcore.solvers.schedules import (
    ConstantLr,
    CosineLr,
    ExponentialLr,
    InverseTimeLr,
    LinearWarmupLr,
    StepLr,
)
from fedcore.spec.code import CodeBundle
from fedcore.spec.evaluation import Evaluation, Execution, FineTuning
from fedcore.spec.local import LocalSolver
from fedcore.spec.problem import Problem
from fedcore.spec.search import (
    Asha,
    AshaPruner,
    EarlyStopping,
    FurtherMetric,
    HyperbandPruner,
    MedianPruner,
    Study,
    SuccessiveHalving,
    SuccessiveHalvingPruner,
)
from fedcore.spec.space import Choice, FloatRange, IntRange
from fedcore.spec.systems import Systems
from fedcore.systems.asynchrony import (
    ConstantStaleness,
    FedAsync,
    FedAT,
    FedBuff,
    HingeStaleness,
    PolynomialStaleness,
)
from fedcore.systems.attacks import (
    Backdoor,
    GaussianNoise,
    InnerProduct,
    LabelFlipping,
    LittleIsEnough,
    MinMax,
    MinSum,
    SignFlipping,
)
from fedcore.systems.availability import (
    AvailabilityTrace,
    DiurnalAvailability,
    RandomAvailability,
    TimedTrace,
)
from fedcore.systems.clock import ConstantRate, Deadline, Devices, LogNormalRate, PerClientRate, UniformRate
from fedcore.systems.device_traces import TraceFile
from fedcore.systems.participation.sampling import (
    Bernoulli,
    ByShare,
    Cyclic,
    Full,
    Trace,
    Uniform,
    WithoutReplacement,
    WithReplacement,
)
from fedcore.systems.participation.selection import DivFl, FedCs, Importance, Oort, PowerOfChoice
from fedcore.systems.work import (
    Constant,
    NormalDraw,
    PerClient,
    Stragglers,
    UniformBatch,
    UniformDraw,
    WorkTrace,
)

__all__ = [
    "QSGD",
    "AdagradServer",
    "Adam",
    "AdamServer",
    "AdamW",
    "AdaptiveClipping",
    "Afl",
    "Apfl",
    "Asha",
    "AshaPruner",
    "AvailabilityTrace",
    "Backdoor",
    "Bernoulli",
    "BulyanAggregator",
    "ByKeyPartition",
    "ByShare",
    "CausalLm",
    "CelebA",
    "CentredClippingAggregator",
    "CharLstm",
    "Choice",
    "Cifar10",
    "Cifar100",
    "Cinic10",
    "ClassesPerClientPartition",
    "ClientLevelPrivacy",
    "Cnn",
    "CodeBundle",
    "Compression",
    "Constant",
    "ConstantLr",
    "ConstantRate",
    "ConstantStaleness",
    "CosineLr",
    "CropFlip",
    "CrossEntropy",
    "Cutout",
    "Cyclic",
    "Deadline",
    "Description",
    "Devices",
    "Digits",
    "DirichletPartition",
    "Ditto",
    "DiurnalAvailability",
    "DivFl",
    "DomainPartition",
    "DropoutCnn",
    "EarlyStopping",
    "Emnist",
    "Evaluation",
    "ExampleLevelPrivacy",
    "Execution",
    "ExponentialLr",
    "FashionMnist",
    "FeatureNoisePartition",
    "FeatureScalePartition",
    "FedAT",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedAware",
    "FedBuff",
    "FedCs",
    "FedDc",
    "FedDyn",
    "FedExp",
    "FedLin",
    "FedMgda",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSam",
    "FedSplit",
    "FedSvrg",
    "FedYogi",
    "FedawareCnn",
    "FedbnCnn",
    "Femnist",
    "FineTuning",
    "FloatRange",
    "Full",
    "FurtherMetric",
    "GaussianNoise",
    "GeneratedProblem",
    "GeometricMedianAggregator",
    "HingeStaleness",
    "HyperbandPruner",
    "Ifca",
    "IidPartition",
    "Importance",
    "Imported",
    "InnerDirichletPartition",
    "InnerProduct",
    "IntRange",
    "InverseTimeLr",
    "KrumAggregator",
    "LabelFlipping",
    "LeastSquares",
    "LeastSquaresClient",
    "LgFedAvg",
    "Linear",
    "LinearWarmupLr",
    "LittleIsEnough",
    "Local",
    "LocalPrivacy",
    "LocalSolver",
    "LogNormalRate",
    "Logistic",
    "Lora",
    "MeanAggregator",
    "MeasureSpec",
    "MedianAggregator",
    "MedianPruner",
    "MimeLite",
    "MinMax",
    "MinSum",
    "Mlp",
    "Mnist",
    "MomentumServer",
    "Natural",
    "NoCompression",
    "NormBoundingAggregator",
    "NormalDraw",
    "Oort",
    "OwnServer",
    "PFedMe",
    "PerClient",
    "PerClientRate",
    "PerFedAvg",
    "PolynomialStaleness",
    "PowerOfChoice",
    "Problem",
    "QFedAvg",
    "Quadratic",
    "QuadraticClient",
    "QuantitySkewPartition",
    "RandK",
    "RandomAvailability",
    "Resnet18",
    "RotatedPartition",
    "SampleGroup",
    "Scaffold",
    "Sent140",
    "SentLstm",
    "SequenceClassifier",
    "Sgd",
    "SgdServer",
    "Shakespeare",
    "ShardsPartition",
    "Sign",
    "SignFlipping",
    "SquaredError",
    "StackOverflow",
    "StepLr",
    "Stragglers",
    "Study",
    "SuccessiveHalving",
    "SuccessiveHalvingPruner",
    "Svhn",
    "Synthetic",
    "Systems",
    "Text",
    "TimedTrace",
    "TimmNetwork",
    "TinyImageNet",
    "TopK",
    "Torchvision",
    "TorchvisionNetwork",
    "Trace",
    "TraceFile",
    "TreePrivacy",
    "TrimmedMeanAggregator",
    "Uniform",
    "UniformBatch",
    "UniformDraw",
    "UniformRate",
    "Uploaded",
    "UploadedContent",
    "Vgg11",
    "VrlSgd",
    "WithReplacement",
    "WithoutReplacement",
    "WorkTrace",
    "YogiServer",
]
