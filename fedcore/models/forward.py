"""Forward passes of a module in training, as functions of nothing but their arguments: dropout with
given random numbers, and batch normalisation with given running statistics.

PyTorch draws masks from a global generator and writes running statistics into the module, so the
result of a pass would depend on the order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedcore.errors import SpecificationError

Draw = Callable[[torch.Size], Tensor]
"""Uniform numbers in [0, 1) of a shape."""
_ALPHA = -1.7580993408473766
"""Saturation value of SELU, which alpha dropout sets features to."""


@dataclass(frozen=True, slots=True)
class Site:
    """One use of dropout in a forward pass: a tensor of random numbers, one axis of which grows with
    the batch.
    """

    axis: int
    """The axis of the samples."""
    count: int
    """Entries of this axis per sample."""
    others: tuple[int, ...]
    """The other axes."""
    start: int
    """Where its numbers begin among the numbers of a sample."""

    @property
    def numbers(self) -> int:
        """Random numbers per sample."""
        return self.count * prod(self.others)

    def lay_out(self, uniform: Tensor) -> Tensor:
        """The numbers of this use in `uniform` [B, T], in the shape of the tensor."""
        own = uniform[:, self.start : self.start + self.numbers]
        laid = torch.unflatten(own, 1, (self.count, *self.others))
        return laid.movedim((0, 1), (self.axis, self.axis + 1)).flatten(self.axis, self.axis + 1)


class BatchStatistics:
    """Running statistics of the batch-norm layers of a module as one vector [S]: for each layer the
    means [C], the variances [C] and the number of batches.
    """

    def __init__(self, layers: Mapping[str, nn.modules.batchnorm._BatchNorm]) -> None:
        """Take the layers by name; all of them track running statistics."""
        self.layers = dict(layers)
        self._sizes = [2 * layer.num_features + 1 for layer in self.layers.values()]
        self._places = {id(layer.running_mean): place for place, layer in enumerate(self.layers.values())}
        self._cumulative = [layer.momentum is None for layer in self.layers.values()]

    def __len__(self) -> int:
        return sum(self._sizes)

    def initial(self, like: Tensor) -> Tensor:
        """The statistics in the buffers of the layers, [S]."""
        parts = [
            torch.cat([_buffer(layer, name).flatten().to(like) for name in _BUFFERS])
            for layer in self.layers.values()
        ]
        return torch.cat(parts) if parts else like.new_zeros(0)

    def named(self, statistics: Tensor) -> dict[str, Tensor]:
        """The buffers of the layers by name, of `statistics` [S]."""
        buffers = {}
        for name, part in zip(self.layers, torch.split(statistics, self._sizes), strict=True):
            mean, variance, batches = _split(part)
            buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"] = mean, variance
            buffers[f"{name}.num_batches_tracked"] = batches.round().long()
        return buffers

    def spread(self, values: Sequence[bool]) -> Tensor:
        """The `values` of the layers, each for all statistics of its layer, [S]."""
        return torch.tensor(values, dtype=torch.bool).repeat_interleave(torch.tensor(self._sizes).long())

    def parts(self, statistics: Tensor) -> list[Tensor]:
        """`statistics` [S] by layer."""
        return list(torch.split(statistics, self._sizes))

    def place(self, running_mean: Tensor | None) -> int:
        """The place of the layer that `running_mean` is a buffer of.

        Raises SpecificationError.
        """
        place = self._places.get(id(running_mean))
        if place is None:
            raise SpecificationError(
                "/problem/model",
                "calls batch_norm in training without running statistics of an nn.BatchNorm layer, so that"
                " a score would depend on the other samples of a batch even in evaluation: use nn.BatchNorm"
                " layers with track_running_stats=True",
            )
        return place

    def is_cumulative(self, place: int) -> bool:
        """True if a layer averages all batches alike (`momentum=None`)."""
        return self._cumulative[place]


_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def _buffer(layer: nn.Module, name: str) -> Tensor:
    found = getattr(layer, name)
    assert isinstance(found, Tensor)
    return found


def _split(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    channels = (part.shape[-1] - 1) // 2
    return part[:channels], part[channels:-1], part[-1]


class TrainingForward(TorchFunctionMode):
    """Within the block, dropout of all kinds uses the numbers of `draw`, and batch norm the
    statistics [S], which the block changes: `statistics` are the new ones.

    `real` [B] is 1 for samples and 0 for padding, which batch norm leaves out; None without padding.
    """

    def __init__(
        self, draw: Draw, norms: BatchStatistics, statistics: Tensor | None, real: Tensor | None = None
    ) -> None:
        super().__init__()
        self.draw, self._norms, self._real = draw, norms, real
        self._parts = norms.parts(statistics) if statistics is not None and len(norms) else []

    @property
    def statistics(self) -> Tensor | None:
        """[S] the running statistics after the pass."""
        return torch.cat(self._parts).detach() if self._parts else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _HANDLERS.get(func)
        return (
            func(*args, **(kwargs or {})) if handler is None else handler(self, func, *args, **(kwargs or {}))
        )

    def batch_norm(
        self,
        inputs: Tensor,
        running_mean: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Batch norm in training, with the statistics of the real samples.

        A batch with one value per channel has no variance: it is normalised with the running
        statistics, which stay as they are. PyTorch refuses it.
        """
        place = self._norms.place(running_mean)
        mean, variance, batches = _split(self._parts[place])
        factor = 1 / (batches + 1) if self._norms.is_cumulative(place) else momentum
        if self._real is not None:
            output, batch_mean, batch_variance, count = _masked(
                inputs, self._real, mean, variance, weight, bias, eps
            )
            fresh = count > 1
        elif inputs.numel() == inputs.shape[1]:
            return functional.batch_norm(inputs, mean, variance, weight, bias, training=False, eps=eps)
        else:
            batch_mean, batch_variance = torch.zeros_like(mean), torch.zeros_like(variance)
            output = functional.batch_norm(
                inputs, batch_mean, batch_variance, weight, bias, training=True, momentum=1.0, eps=eps
            )
            fresh = torch.ones((), dtype=torch.bool, device=mean.device)
        mean, variance = (
            torch.where(fresh, old + factor * (new.detach() - old), old)
            for old, new in ((mean, batch_mean), (variance, batch_variance))
        )
        self._parts[place] = torch.cat([mean, variance, (batches + fresh)[None]])
        return output


def _masked(
    inputs: Tensor,
    real: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised inputs [B, C, ...], mean and unbiased variance [C] of the real samples, and the
    number of their values per channel.
    """
    others, spread = (0, *range(2, inputs.dim())), (1, -1, *[1] * (inputs.dim() - 2))
    rows = real.view(-1, *[1] * (inputs.dim() - 1))
    count = real.sum() * prod(inputs.shape[2:])
    own_mean = (inputs * rows).sum(others) / count
    centred = inputs - own_mean.view(spread)
    own_variance = (centred.square() * rows).sum(others) / count
    fresh = count > 1
    used_mean, used_variance = torch.where(fresh, own_mean, mean), torch.where(fresh, own_variance, variance)
    output = (inputs - used_mean.view(spread)) * (used_variance + eps).rsqrt().view(spread)
    if weight is not None:
        output = output * weight.view(spread)
    if bias is not None:
        output = output + bias.view(spread)
    return output, own_mean, own_variance * count / (count - 1).clamp(min=1), count


def dropout_mask(uniform: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """1 / (1 - p) for features that are kept, 0 for features that are dropped, in the shape of the
    `uniform` numbers; of `dtype`, or float32 if that is shorter.

    In bfloat16 the factor itself would be rounded, all kept features alike: 1 / 0.9 to 1.1094.
    """
    return (uniform >= p).to(torch.promote_types(dtype, torch.float32)).div_(_left(p))


def _make_dropout(*, channels: bool = False, alpha: bool = False) -> Callable[..., Tensor]:
    """Dropout of single numbers or of whole `channels`, which become zero or, with `alpha`, the value that
    SELU saturates at. Defaults are PyTorch's.
    """

    def drop(
        mode: TrainingForward,
        _func: Any,
        inputs: Tensor,
        p: float = 0.5,
        training: bool = not alpha,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return inputs
        uniform = mode.draw(_channels(inputs) if channels else inputs.shape)
        if alpha:
            kept = (uniform >= p).to(torch.promote_types(inputs.dtype, torch.float32))
            return _saturated(inputs, kept, p)
        return (inputs * dropout_mask(uniform, p, inputs.dtype)).to(inputs.dtype)

    return drop


_dropout = _make_dropout()
_feature_dropout = _make_dropout(channels=True)
_alpha_dropout = _make_dropout(alpha=True)
_feature_alpha_dropout = _make_dropout(channels=True, alpha=True)


def _bernoulli(mode: TrainingForward, _func: Any, inputs: Tensor, **_others: Any) -> Tensor:
    """`torch.bernoulli(probabilities)`."""
    return (mode.draw(inputs.shape) < inputs).to(inputs.dtype)


def _bernoulli_in_place(
    mode: TrainingForward, _func: Any, inputs: Tensor, p: Tensor | float = 0.5, **_others: Any
) -> Tensor:
    """`Tensor.bernoulli_(p)`, as stochastic depth uses it: a new tensor, since one client's cannot
    take the numbers of many. The old one is spoilt, lest it be used.
    """
    inputs.fill_(float("nan"))
    return (mode.draw(inputs.shape) < p).to(inputs.dtype)


def _attention(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    mode: TrainingForward,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention, written out where its weights are dropped."""
    if dropout_p == 0:
        how = {"is_causal": is_causal, "scale": scale}
        if enable_gqa:  # which PyTorch 2.4 does not know
            how["enable_gqa"] = True
        return func(query, key, value, attn_mask, dropout_p, **how)
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    weights = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, float("-inf"))
        else:
            weights = weights + attn_mask
    return _dropout(mode, func, weights.softmax(-1), dropout_p) @ value


_MULTI_HEAD = functional.multi_head_attention_forward
_multi_head_body = FunctionType(
    _MULTI_HEAD.__code__,
    {**vars(functional), "has_torch_function": lambda _tensors: False},
    _MULTI_HEAD.__name__,
    _MULTI_HEAD.__defaults__,
    _MULTI_HEAD.__closure__,
)
"""PyTorch's function without its first check, which would hand it back to the mode, so that the mode
sees the dropout inside.
"""


def _multi_head(mode: TrainingForward, _func: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return _multi_head_body(*args, **kwargs)


def _batch_norm(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    mode: TrainingForward,
    func: Any,
    inputs: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not training:
        return func(inputs, running_mean, running_var, weight, bias, training, momentum, eps)
    return mode.batch_norm(inputs, running_mean, weight, bias, momentum, eps)


_HANDLERS: Mapping[Any, Callable[..., Any]] = {
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.dropout1d: _feature_dropout,
    functional.dropout2d: _feature_dropout,
    functional.dropout3d: _feature_dropout,
    torch.feature_dropout: _feature_dropout,
    functional.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout: _alpha_dropout,
    functional.feature_alpha_dropout: _feature_alpha_dropout,
    torch.feature_alpha_dropout: _feature_alpha_dropout,
    Tensor.bernoulli_: _bernoulli_in_place,
    torch.bernoulli: _bernoulli,
    functional.scaled_dot_product_attention: _attention,
    _MULTI_HEAD: _multi_head,
    functional.batch_norm: _batch_norm,
}


def _left(p: float) -> float:
    # Everything is dropped with p = 1, whatever it is divided by.
    return 1 - p or 1.0


def _channels(inputs: Tensor) -> torch.Size:
    """The shape of one number for each channel of each sample [B, C, ...]."""
    if inputs.dim() < 3:
        raise SpecificationError(
            "/problem/model",
            f"drops channels of a tensor of shape {list(inputs.shape)}, which has no samples, channels and"
            " positions: use nn.Dropout",
        )
    return torch.Size([*inputs.shape[:2], *[1] * (inputs.dim() - 2)])


def _saturated(inputs: Tensor, kept: Tensor, p: float) -> Tensor:
    """Alpha dropout (Klambauer et al., 2017): dropped features take the value that SELU saturates
    at, and mean and variance stay.
    """
    scale = (_left(p) * (1 + p * _ALPHA**2)) ** -0.5
    saturated: Tensor = scale * (inputs * kept + _ALPHA * (1 - kept)) - scale * _ALPHA * p
    return saturated.to(inputs.dtype)
