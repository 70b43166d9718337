"""The embedded stack with a supervisor that takes a process to hang after seconds."""

import sys

from fedcore.platform import watchdog
from workers.embedded import supervisor

SILENT_S = 6.0


def main() -> int:
    """As `workers.embedded.supervisor`."""
    watchdog.SILENT_S = SILENT_S
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(main())
