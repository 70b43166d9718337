"""A follower of an experiment's events."""

import json
import time
from dataclasses import dataclass, field


@dataclass
class Followed:
    """Events received by one follower of an experiment. Changes in place."""

    events: list[tuple[str, int, float]] = field(default_factory=list)
    """Run, round, and when it came."""
    ended: bool = False
    _rest: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Read a part of the stream."""
        now = time.time()
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            if fields.get(b"event") == b"round":
                row = json.loads(fields[b"data"])
                self.events.append((row["run_id"], row["round"], now))
