"""Batch normalisation in federated learning: four policies for its statistics and parameters.

A batch has the samples of one client, so averaging its statistics is a decision (Hsieh et al., The
Non-IID Data Quagmire of Decentralized Machine Learning, ICML 2020), which a specification declares.
"""

from __future__ import annotations

from torch import nn

from fedcore.errors import SpecificationError
from fedcore.models.base import BatchNormPolicy
from fedcore.models.forward import BatchStatistics

POINTER = "/problem/model/batch_norm"
GROUPS = 2
"""Groups of a group norm in place of a batch norm, as of `resnet18`; one for an odd number of
channels.
"""
BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base class of all batch norms


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """The batch-norm layers of `module` by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, BatchNorm)}


def apply_policy(module: nn.Module, policy: BatchNormPolicy | None, where: str = "") -> nn.Module:
    """Return `module` prepared for the policy; changes it in place. `where` says to users where to
    declare it.

    Raises SpecificationError if it has batch norm and no policy is declared, or one that does not
    fit.
    """
    layers = batch_norms(module)
    if not layers:
        if policy is not None:
            raise SpecificationError(POINTER, "the model has no batch norm: omit `batch_norm`")
        return module
    if policy is None:
        raise SpecificationError(
            POINTER,
            f"the model has batch norm ({', '.join(list(layers)[:3])}{', ...' * (len(layers) > 3)}), whose"
            " running statistics differ between clients; declare a policy: `average` (the server averages"
            " them with the parameters), `local` (FedBN: statistics and parameters of batch norm stay with"
            " the client), `frozen` (both stay as they are) or `group` (group norm in place of batch norm)"
            f"{where}",
        )
    if policy == "group":
        return _with_group_norm(module, layers)
    untracked = [name for name, layer in layers.items() if layer.running_mean is None]
    if untracked:
        raise SpecificationError(
            POINTER,
            f"batch norm without running statistics ({untracked[0]}) is only supported as `group`: in"
            " evaluation, scores would depend on the other samples of a batch",
        )
    if policy == "frozen":
        for layer in layers.values():
            layer.eval().requires_grad_(requires_grad=False)
    return module


def trained_norms(module: nn.Module, policy: BatchNormPolicy | None) -> BatchStatistics:
    """The layers whose running statistics change as clients train."""
    return BatchStatistics(batch_norms(module) if policy in ("average", "local") else {})


def private_parameters(module: nn.Module, policy: BatchNormPolicy | None) -> list[str]:
    """Names of the parameters that stay with the client: under `local`, the parameters of batch
    norm.
    """
    if policy != "local":
        return []
    return [
        f"{name}.{own}"
        for name, layer in batch_norms(module).items()
        for own, parameter in layer.named_parameters()
        if parameter.requires_grad
    ]


def _with_group_norm(module: nn.Module, layers: dict[str, BatchNorm]) -> nn.Module:
    for name, layer in layers.items():
        if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            raise SpecificationError(
                POINTER,
                f"{name} is a {type(layer).__name__}, which does more than batch norm and cannot be"
                " replaced by group norm: use another policy",
            )
        channels = layer.num_features
        norm = nn.GroupNorm(GROUPS if channels % GROUPS == 0 else 1, channels, layer.eps, affine=layer.affine)
        norm.load_state_dict(dict(layer.named_parameters()))
        if not name:
            return norm
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, norm)
    return module
