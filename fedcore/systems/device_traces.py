"""Device traces in FedScale's format: measured speeds of phones, of which each client gets one.

Block `systems.devices.trace`; the simulated clock (`fedcore.systems.clock`) uses the rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedcore.block import Block
from fedcore.errors import DataUnavailableError
from fedcore.lazy import np, random
from fedcore.systems.trace_files import FileDigest, FileName, find_digest, read_devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

TRAINING_FACTOR = 3
"""A training step takes this many times as long as inference, as FedScale assumes."""
BYTES_PER_KILOBIT = 128
"""FedScale's kilobits have 1024 bits."""
_FIELDS = ("computation", "communication")


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """The R devices of a trace."""

    steps_per_second: Floats
    """[R]"""
    bytes_per_second: Floats
    """[R] in either direction."""

    def rows(self, clients: Ids, seed: int) -> Ids:
        """[M] the devices of `clients` [M], drawn once per client, uniformly with replacement."""
        count = len(self.steps_per_second)
        return np.array([_row(count, seed, int(client)) for client in clients], np.int64)


# As of generated rates: making a client's generator costs more than remembering its device.
@lru_cache(maxsize=100_000)
def _row(count: int, seed: int, client: int) -> int:
    return int(random.generator(seed, "device trace", client=client).integers(count))


class TraceFile(Block):
    """Devices of a file in the format of FedScale's `client_device_capacity` (Lai et al., 2022,
    FedScale, arXiv:2105.11367, with speeds of AI Benchmark and bandwidths of MobiPerf).

    The file is JSON, since FedQ reads no pickles, of the structure of FedScale's: {device:
    {"computation": milliseconds of inference for one sample, "communication": kilobits per
    second}}. Each client gets one device, drawn with replacement from the seed and the client id.
    As in FedScale, a local step takes 3 `samples_per_step` computation milliseconds, both
    directions have the same bandwidth, and a kilobit has 1024 bits. Departure: FedScale assigns
    devices in the order of client ids.
    """

    file: FileName = "client_device_capacity.json"
    """Name of the file in FEDQ_DATA_DIR."""
    samples_per_step: Annotated[int, Field(ge=1, le=1_000_000)]
    """Samples of a local step, usually `local.batch_size`."""
    digest: FileDigest = None
    """SHA-256 that the file must have (default: it is not checked)."""

    def load(self, folder: Path) -> DeviceTrace:
        """Read the file from `folder`, FEDQ_DATA_DIR.

        Raises DataUnavailableError if it is missing, another file than `digest` says, or not in the
        format.
        """
        path = folder / self.file
        found = find_digest(path, self.digest, "systems.devices.trace", "client_device_capacity")
        milliseconds, kilobits = _figures(path, found)
        return DeviceTrace(
            1000 / (TRAINING_FACTOR * self.samples_per_step * milliseconds), BYTES_PER_KILOBIT * kilobits
        )


# FedScale's 500,000 devices take 3 s to parse. By digest, so that a changed file is read anew.
@lru_cache(maxsize=2)
def _figures(path: Path, _digest: str) -> tuple[Floats, Floats]:
    """[R] each: computation and communication of the devices."""
    devices = read_devices(path, "a device trace", " and ".join(_FIELDS))
    return _column(devices, "computation", path), _column(devices, "communication", path)


def _column(devices: Mapping[Any, Any], field: str, path: Path) -> Floats:
    figures = np.empty(len(devices))
    for row, (name, device) in enumerate(devices.items()):
        try:
            figures[row] = float(device[field])
        except (KeyError, TypeError, ValueError, OverflowError):
            figures[row] = np.nan
        if not 0 < figures[row] < np.inf:
            raise DataUnavailableError(
                f"{path}: device {name!r} has no positive `{field}`; correct the entry, or remove it"
            )
    return figures
