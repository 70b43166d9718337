"""Play rounds of one run for the estimate of a plan (`fedq.planning.probe`).

    python -m fedq.local.probed_rounds < request.json

The request has the `specification` of the run, the facts about all `arms` of its experiment, and
the `storage` of uploaded data sets: a URL; null: FEDQ_DATA_DIR. Writes a line `ready` once the data
are loaded, one with the seconds of each round, or one with the reason why none can be played.
"""

import json
import sys

import torch

from fedcore.errors import DataUnavailableError, SpecificationError, StorageError
from fedcore.platform.storage import open_storage
from fedcore.platform.uploads.dataset_storage import SharedDatasetStorage
from fedcore.settings import settings
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.spec.engines import ArmFacts
from fedq.planning.probe import READY, ROUNDS


def main() -> None:
    """Play rounds of the specification on standard input."""
    torch.set_num_threads(settings().torch_threads)
    device = settings().device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    request = json.load(sys.stdin)
    spec, storage = ExperimentSpec.model_validate(request["specification"]), request["storage"]
    arms = ArmFacts(**request["arms"])
    try:
        shelf = None if storage is None else SharedDatasetStorage(open_storage(storage))
        simulation = Simulation(spec, spec.seeds[0], device=device, shelf=shelf, arms=arms)
    except (DataUnavailableError, SpecificationError, StorageError) as error:
        if storage is not None and spec.weights_files and isinstance(error, DataUnavailableError):
            _tell("reason", "plans do not read uploaded files of pretrained networks")
            return
        _tell("reason", *str(error).split())
        return
    _tell(READY)
    while not simulation.finished and simulation.round < ROUNDS:
        _tell("round", simulation.advance().seconds)


def _tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
