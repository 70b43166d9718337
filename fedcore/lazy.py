"""Libraries that are imported on first use.

Specifications stand beside their mathematics, and are read by processes that load neither NumPy nor
PyTorch, which take 0.1 and 2 seconds to import; so does `fedcore.random`, which needs NumPy. Type
checkers are given the libraries themselves.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for the module `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import dp_accounting
    import h5py
    import httpx
    import markdown_it
    import numpy as np
    import optuna
    import peft
    import pydantic
    import pyparsing
    import submitit
    import timm
    import tokenizers
    import torch
    import torchvision
    import transformers
    import yaml
    from dp_accounting import pld, rdp
    from kombu import transport
    from PIL import Image
    from redis import asyncio as redis
    from safetensors import torch as safetensors_torch
    from submitit import helpers as submitit_helpers
    from torch import nn
    from torch.nn import functional
    from torchmetrics import functional as torchmetrics
    from torchvision import datasets as torchvision_datasets

    from fedcore import random
else:
    dp_accounting = LazyModule("dp_accounting")
    functional = LazyModule("torch.nn.functional")
    h5py = LazyModule("h5py")
    # The API needs it for its first webhook; with its command line it takes 50 ms to load.
    httpx = LazyModule("httpx")
    Image = LazyModule("PIL.Image")
    markdown_it = LazyModule("markdown_it")
    nn = LazyModule("torch.nn")
    np = LazyModule("numpy")
    optuna = LazyModule("optuna")
    peft = LazyModule("peft")
    pld = LazyModule("dp_accounting.pld")
    pydantic = LazyModule("pydantic")
    pyparsing = LazyModule("pyparsing")
    random = LazyModule("fedcore.random")
    rdp = LazyModule("dp_accounting.rdp")
    redis = LazyModule("redis.asyncio")
    safetensors_torch = LazyModule("safetensors.torch")
    submitit = LazyModule("submitit")
    submitit_helpers = LazyModule("submitit.helpers")
    timm = LazyModule("timm")
    tokenizers = LazyModule("tokenizers")
    torch = LazyModule("torch")
    torchmetrics = LazyModule("torchmetrics.functional")
    torchvision = LazyModule("torchvision")
    torchvision_datasets = LazyModule("torchvision.datasets")
    transformers = LazyModule("transformers")
    transport = LazyModule("kombu.transport")
    yaml = LazyModule("yaml")
