"""What remains of a run that has ended well: its model, and what it was made with."""

import platform
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from safetensors.torch import save

from fedcore.experiment import Simulation
from fedcore.store.claim import Claim

ENGINE_CHOICE = "engine_choice"
_LIBRARIES = ("fedq", "numpy", "torch")


def model_key(claim: Claim) -> str:
    """Where the final model of a run is stored; a worker that lost its claim writes elsewhere."""
    return f"{claim.run_id}/model-{claim.fence}.safetensors"


def model_bytes(simulation: Simulation, claim: Claim) -> bytes:
    """The global model as safetensors, by the names of its module's parameters."""
    parameters = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in simulation.model().items()}
    return save(parameters, {"format": "pt", "run": claim.run_id, "experiment": claim.experiment_id, "round": str(simulation.round)})


def provenance(simulation: Simulation, device: str) -> dict[str, Any]:
    """Versions, device, engine and data: what one has to have again to repeat the run."""
    return {
        "versions": dict(_versions()),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
        "engine": simulation.engine,
        "gang": simulation.gang,
        "thrift": simulation.thrift,
        ENGINE_CHOICE: simulation.choice.document(),
        "precision": simulation.spec.precision,
        "data_source": simulation.data_source,
    }


@cache
def _versions() -> dict[str, str]:
    # Reading them takes longer than writing a slice.
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}
