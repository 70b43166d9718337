"""Availability traces in FedScale's format: the seconds in which each of many phones could be reached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import DataUnavailableError
from fedcore.lazy import np
from fedcore.systems.trace_files import read_devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Intervals:
    """When each of R devices can be reached, again and again after its period."""

    periods: Floats
    """[R] seconds."""
    starts: Floats
    """[I] ascending: device * stride + second, of the intervals of all devices in turn."""
    ends: Floats
    """[I] likewise, of the interval itself or of one that began before it, whichever is later."""
    stride: float
    """More than any second of the trace."""

    def reached(self, seconds: float) -> Mask:
        """[R] true for each device that can be reached at `seconds`."""
        if not len(self.starts):
            return np.zeros(len(self.periods), bool)
        devices = np.arange(len(self.periods))
        moments = devices * self.stride + seconds % self.periods
        last = self.starts.searchsorted(moments, side="right") - 1
        # The last interval to begin until then is of another device if it ends before the stride.
        inside: Mask = (last >= 0) & (self.ends[np.maximum(last, 0)] >= moments)
        return inside


# By digest, so that a changed file is read anew; FedScale's 100,000 devices take seconds to parse.
@lru_cache(maxsize=2)
def read_intervals(path: Path, _digest: str) -> Intervals:
    """The intervals of the file at `path`; raises DataUnavailableError if it is not in the format."""
    devices = read_devices(path, "an availability trace", "active, inactive and finish_time")
    columns = [_columns(name, device, path) for name, device in devices.items()]
    periods = np.array([period for _, _, period in columns])
    stride = 1 + max(periods.max(), *(float(ends.max(initial=0.0)) for _, ends, _ in columns))
    starts = np.concatenate([row * stride + starts for row, (starts, _, _) in enumerate(columns)])
    ends = np.concatenate([row * stride + ends for row, (_, ends, _) in enumerate(columns)])
    order = np.argsort(starts, kind="stable")
    return Intervals(periods, starts[order], np.maximum.accumulate(ends[order]), float(stride))


def _columns(name: str, device: Any, path: Path) -> tuple[Floats, Floats, float]:
    """Starts, ends and period of a device."""
    try:
        period = float(device["finish_time"])
        starts, ends = (np.array(device[field], np.float64) for field in ("active", "inactive"))
    except (KeyError, TypeError, ValueError, OverflowError):
        period, starts, ends = np.nan, np.zeros(0), np.zeros(0)
    both = np.concatenate([starts, ends]) if starts.ndim == ends.ndim == 1 else np.array([np.nan])
    if not 0 < period < np.inf or len(starts) > len(ends) or not ((both >= 0) & (both < np.inf)).all():
        raise DataUnavailableError(
            f"{path}: device {name!r} needs a positive `finish_time`, and lists of seconds `active` and"
            " `inactive`, an end for every start; correct the entry, or remove it"
        )
    return starts, ends[: len(starts)], period
