"""`problem.model`: the available models."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedcore.block import Block, NonNegative

Width = Annotated[int, Field(ge=1, le=65_536)]
Layers = Annotated[int, Field(ge=1, le=16)]


class _Regularised(Block):
    l2: NonNegative = 0.0
    """Adds l2 |theta|^2 / 2 to every client's loss."""


class Linear(_Regularised):
    """Affine map with squared error 1/2 |W z + b - t|^2.

    T is the one-hot label, or the label itself where it is a real number.
    """

    kind: Literal["linear"]


class Logistic(_Regularised):
    """Multinomial logistic regression (softmax, cross-entropy); convex."""

    kind: Literal["logistic"]


class Mlp(_Regularised):
    """Fully connected layers with ReLU, cross-entropy."""

    example = {"hidden": [200, 200]}

    kind: Literal["mlp"]
    hidden: Annotated[tuple[Width, ...], Field(fail_fast=True, min_length=1, max_length=16)] = (200,)
    """Widths of the hidden layers."""


class Cnn(_Regularised):
    """The CNNs of McMahan et al. (2017): two 5 x 5 convolutions, each with 2 x 2 max-pooling,
    hidden dense layers, cross-entropy.

    The defaults are those for MNIST. `channels: [64, 64], hidden: [384, 192]` is the model for
    CIFAR-10 (TensorFlow's tutorial), without local response normalisation and on full images.
    """

    example = {"norm": "group"}

    kind: Literal["cnn"]
    channels: Annotated[tuple[Width, Width], Field()] = (32, 64)
    """Channels of the two convolutions."""
    hidden: Width | Annotated[tuple[Width, ...], Field(fail_fast=True, min_length=1, max_length=16)] = 512
    """Width of the dense layer, or the widths of several."""
    norm: Literal["none", "group"] = "none"
    """`group` puts group norm after each convolution."""

    @field_validator("norm", mode="before")
    @classmethod
    def _no_batch_norm(cls, value: object) -> object:
        if value in ("batch", "batch_norm"):
            raise ValueError(
                "batch norm is not supported: averaging running statistics is wrong under heterogeneity; use"
                " 'group'"
            )
        return value


class FedawareCnn(_Regularised):
    """The small CNN of FedAWARE's code: 3 x 3 convolutions without padding of 32, 64 and 64
    channels, max-pooling after two, one of 64.
    """

    kind: Literal["fedaware_cnn"]


class Vgg11(_Regularised):
    """VGG-11 without batch norm (FedNova, Table I): eight 3 x 3 convolutions, dense layers of 512
    and 512, cross-entropy.

    Its official code has dropout before each hidden dense layer; here there is none, so that a
    gradient depends on the model and the mini-batch alone.
    """

    kind: Literal["vgg11"]


class Resnet18(_Regularised):
    """ResNet-18 for small images: a 3 x 3 stem without pooling, group norm in place of batch norm,
    cross-entropy.
    """

    kind: Literal["resnet18"]
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 2
    """Groups of each group norm."""


class CharLstm(_Regularised):
    """Next-character LSTM (McMahan et al., 2017; FedProx, Section 5.1): embedding, stacked LSTM, a
    dense layer on its last output.
    """

    example = {"hidden": 256}

    kind: Literal["char_lstm"]
    embedding: Width = 8
    """Length of a character's learned vector."""
    hidden: Width = 100
    """Width of each LSTM layer; 256 in McMahan et al. and in FedProx's code."""
    layers: Layers = 2
    """Stacked LSTM layers."""


class SentLstm(_Regularised):
    """Sentiment LSTM (FedProx, Section 5.1): frozen word vectors, stacked LSTM, a linear layer on
    its last output, a logistic output.
    """

    kind: Literal["sent_lstm"]
    hidden: Width = 256
    """Width of each LSTM layer; 100 in FedProx's code."""
    layers: Layers = 2
    """Stacked LSTM layers."""
    dense: Width = 30
    """Width of the linear layer."""


class Imported(_Regularised):
    """A custom model: `factory(shape, outputs)` at an import path that the operator allows
    (FEDQ_MODELS_ALLOWED).

    It must return an `nn.Module` without running statistics that maps samples [B, *shape] to scores
    [B, outputs], one per class, deterministically. The module's parameters are the initial ones;
    PyTorch's random generator is seeded by the run.
    """

    example = {"path": "ourlab.networks:small_transformer", "parameters": 48210}

    kind: Literal["import"]
    path: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]
    """`package.module:factory`; the factory must be defined in the module."""
    parameters: Annotated[int, Field(ge=1, le=2**53)]
    """Number of parameters, D; checked by the worker."""
    loss: Literal["cross_entropy", "squared_error"] = "cross_entropy"
    """Cross-entropy of the scores, or 1/2 |scores - t|^2, t the one-hot label, or the label itself
    where it is a real number.
    """


Convolutional = Cnn | FedawareCnn | Vgg11 | Resnet18
"""Models of images."""

AnyModel = Annotated[
    Linear | Logistic | Mlp | Cnn | FedawareCnn | Vgg11 | Resnet18 | CharLstm | SentLstm | Imported,
    Field(discriminator="kind"),
]
