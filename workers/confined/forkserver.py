"""Process of one bundle of one owner that has loaded the libraries, and forks a computing process for
each session: `python -P -m workers.confined.forkserver DESCRIPTOR FOLDER MEMORY`.

It is executed with an environment without credentials, under bubblewrap where that is possible. The
descriptor belongs to a connection, over which each session comes as a connection of its own.
"""

import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from fedcore.platform.watchdog import end_with_parent
from workers.confined.limits import (
    ENDED,
    discard_output,
    inherit_orphans,
    limit_resources,
)


def main(descriptor: str, folder: str, memory: str) -> None:
    """Serve sessions until the other side is gone.

    The code in `folder`/bundle is loaded by the forked processes only, which may take `memory`
    bytes more than the libraries; 0: any number.
    """
    end_with_parent()
    inherit_orphans()
    gc.disable()  # While modules are loaded it finds nothing, and takes a fifth of the time.
    from workers.confined.computing import Computing

    gc.collect()
    gc.freeze()  # Else the collector would write to pages that all sessions share.
    gc.enable()
    with socket.socket(fileno=int(descriptor)) as control:
        control.sendall(ENDED.pack(0))
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                end_with_parent()
                discard_output()
                limit_resources(int(memory) or None)
                Computing(descriptors[0], Path(folder)).serve()
                # What users' code has registered for the end of the process is not executed.
                os._exit(0)
            os.close(descriptors[0])
            _, status = os.waitpid(pid, 0)
            control.sendall(ENDED.pack(os.waitstatus_to_exitcode(status)))
            _reap()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
