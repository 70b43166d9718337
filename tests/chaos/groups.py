"""Faults of a group: its leader and its members are killed, stopped, and cut off from one another."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from fedcore.platform.store.tables import RunRecord
from tests.chaos.world import Fault, World

SHARDS, WORKERS = 4, 3
PIDFD_GETFD = 438
"""The number of the system call, which Python does not have."""


def links(world: World) -> Mapping[int, Sequence[int]]:
    """Descriptors of the leader's connection with each member that has joined, by the member's process."""
    run, workers = world.run, world.deployment.workers()
    leader = _ports(workers.get(run.worker or "", 0))
    found = {
        pid: [leader[there, here] for here, there in _ports(pid) if (there, here) in leader]
        for pid in world.deployment.members().values()
    }
    return {pid: descriptors for pid, descriptors in found.items() if descriptors}


def in_group(world: World) -> bool:
    """True if all workers but the leader have joined its group."""
    return len(links(world)) == len(world.workers) - 1


def _ports(pid: int) -> dict[tuple[int, int], int]:
    """Descriptors of the connections of a process, by its own port and that of the other side; none if it
    has ended.
    """
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return {}
    return {
        (one.laddr.port, one.raddr.port): one.fd for one in found if one.status == psutil.CONN_ESTABLISHED
    }


def _cut(pid: int, descriptors: Sequence[int]) -> None:
    """Shut down connections of a process, as a network does that goes away."""
    process, library = os.pidfd_open(pid), ctypes.CDLL(None, use_errno=True)
    try:
        for descriptor in descriptors:
            copy = library.syscall(PIDFD_GETFD, process, descriptor, 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "the connections of a worker cannot be reached")
            with socket.socket(fileno=copy) as connection:
                connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(process)


def _member_gets(signum: signal.Signals) -> Callable[[World, RunRecord], float]:
    def strike(world: World, _: RunRecord) -> float:
        os.kill(min(links(world)), signum)
        return time.monotonic()

    return strike


def _leader_gets(signum: signal.Signals) -> Callable[[World, RunRecord], float]:
    def strike(world: World, run: RunRecord) -> float:
        world.deployment.send(run, signum)
        return time.monotonic()

    return strike


def _leader_and_member(world: World, run: RunRecord) -> float:
    member = min(links(world))
    world.deployment.send(run, signal.SIGKILL)
    os.kill(member, signal.SIGKILL)
    return time.monotonic()


def _cut_off(world: World, run: RunRecord) -> float:
    found = links(world)
    _cut(world.deployment.pid(run), found[min(found)])
    return time.monotonic()


def _all_cut_off(world: World, run: RunRecord) -> float:
    _cut(world.deployment.pid(run), [descriptor for member in links(world).values() for descriptor in member])
    return time.monotonic()


GROUPS = (
    Fault("a member of a group is killed", _member_gets(signal.SIGKILL), takes=False),
    Fault("a member's process stops", _member_gets(signal.SIGSTOP), takes=False),
    Fault("a member is cut off from the leader", _cut_off, takes=False),
    Fault("all members are cut off from the leader", _all_cut_off, takes=False),
    Fault("the leader of a group is killed", _leader_gets(signal.SIGKILL)),
    Fault("the leader's process stops", _leader_gets(signal.SIGSTOP)),
    Fault("the leader and a member are killed at once", _leader_and_member),
)
"""Faults of a run in shards that all workers train."""
