"""Files and records that a completed run leaves: its model and its provenance."""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedcore.packages import file_digest
from fedcore.platform.provenance import (
    BEST_MODEL,
    CHANCE_ACCURACY,
    DIVERGENCE,
    ENGINE_CHOICE,
    MODEL_SHA256,
    PACKAGES,
    best_key_beside,
)
from fedcore.platform.version import find_commit, find_release
from fedcore.simulation.computed_run import ComputedRun, RunFacts

_LIBRARIES = ("fedq", "numba", "numpy", "torch", "torchmetrics")
_PROCESSORS = Path("/proc/cpuinfo")


def model_files(
    simulation: ComputedRun, key: str, run_id: str, experiment_id: str
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The final model of a run as safetensors, to be stored under `key`, and the best one under its key;
    and their digests, for the provenance of the run.

    Parameters have the names of their module. A digest is the SHA-256 of the file without its metadata.
    """
    facts, about = simulation.facts, {"format": "pt", "run": run_id, "experiment": experiment_id}
    final = _resident(simulation.model())
    digests: dict[str, Any] = {MODEL_SHA256: hashlib.sha256(save(final)).hexdigest()}
    files = {key: save(final, {**about, "round": str(facts.round)})}
    if facts.best is not None:
        best = _resident(simulation.best_model())
        sha256 = hashlib.sha256(save(best)).hexdigest()
        digests[BEST_MODEL] = {**facts.best.document(), "sha256": sha256}
        if sha256 != digests[MODEL_SHA256]:
            files[best_key_beside(key)] = save(best, {**about, "round": str(facts.best.round)})
    return files, digests


def describe_run(facts: RunFacts, device: str, packages: Sequence[str]) -> dict[str, Any]:
    """Code, versions, device, engine and data: everything needed to repeat a run that uses these
    installed packages.
    """
    return {
        "code": {"release": find_release(), "commit": find_commit()},
        "versions": dict(_versions()),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "hardware": dict(_hardware(device)),
        "threads": torch.get_num_threads(),
        "engine": facts.choice.engine,
        "batched_runs": facts.batched_runs,
        "memory_divisor": facts.memory_divisor,
        ENGINE_CHOICE: facts.choice.document(),
        "precision": facts.precision,
        "data_source": facts.data_source,
        "data_sha256": facts.data_sha256,
        **({} if (chance := facts.chance_accuracy) is None else {CHANCE_ACCURACY: chance}),
        **({} if (noise := facts.noise_multiplier) is None else {"noise_multiplier": noise}),
        **({} if facts.divergence is None else {DIVERGENCE: facts.divergence}),
        **_packages(packages),
    }


def _packages(needed: Sequence[str]) -> dict[str, Any]:
    used = [(name, version) for name, _, version in (package.rpartition(" ") for package in needed)]
    about = {name: {"version": version, "sha256": file_digest(name)} for name, version in used}
    return {PACKAGES: about} if about else {}


def _resident(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in parameters.items()}


@cache
def _hardware(device: str) -> dict[str, Any]:
    """The processor and the widest instructions that PyTorch makes use of.

    Of a GPU its compute capability and what drives it.
    """
    found: dict[str, Any] = {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
    }
    if device.startswith("cuda"):
        major, minor = torch.cuda.get_device_capability(device)
        found |= {
            "compute_capability": f"{major}.{minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return found


def _processor() -> str:
    """Name of the processor, where the system tells it."""
    lines = (
        _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines() if _PROCESSORS.exists() else []
    )
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def _versions() -> dict[str, str]:
    # Reading them takes longer than writing a slice.
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}
