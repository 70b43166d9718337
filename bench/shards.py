"""One run on several workers (`execution.shards`): two workers of one thread each against the parallel
engine with two, what a round adds by the size of the model, and a model of scaling made of both.

    python -m bench shards [--workloads W3,W7] [--rounds 8] [--sizes 1e4,1e5,1e6,1e7,1e8]
    [--peer] [--write docs/performance.md]

- rates: the two take turns, round by round, on the same data; with `--peer`, pfl-research in two
  processes of one thread each does, too, in its environment (`python -m bench environments`).
- overhead: a message with a model [D] to another process and an answer of the same size, in turns with
  the same bytes over a bare connection. Both processes have one thread and reuse freed
  memory, as in the rates; making the vectors is not timed.
- scaling: calculated from the two, for workers that share the network of the run's own worker; checked
  with workers that sleep where others train, so that any number of them fits on two cores.
"""

import itertools
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench import report
from bench.contender import Contender
from bench.export import export
from bench.options import HOME, among, command
from bench.race import python_of
from bench.workloads import WORKLOADS
from fedcore import ExperimentSpec, Simulation
from fedcore.engine.assignment import Job, Result
from fedcore.engine.engines import ENGINES
from fedcore.engine.process_tuning import retain_freed_memory
from fedcore.engine.shard_messages import ShardMessage
from fedcore.engine.shards import one_by_one
from fedcore.platform.store import Database, experiments, groups, open_database, runs, upgrade
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claimant
from fedcore.simulation.shard_member import ShardMember
from workers.peer import Peer, admit, connect, listen
from workers.shard_group import GroupPacing, ShardGroup, serve

QUEUE, LEASE_S, SHARDS = "default", 3600.0, 4
PEER = "pfl2"
CONNECTION = "0"
LONG_S = 600.0
PACING = GroupPacing(look_s=0.2)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
NETWORK_BYTES_S = 1.25e9
"""10 Gbit/s."""
CHECKED, DELAY_S, CHECKED_SHARDS = (1, 2, 4, 8), 0.05, 16
SMALL: dict[str, Any] = {
    "name": "sleeps",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"dim": 10, "clients": CHECKED_SHARDS}}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 1},
    "execution": {"shards": CHECKED_SHARDS, "engine": "reference"},
    "evaluation": {"every": 1_000_000},
    "rounds": 1_000_000,
}


class Rates(NamedTuple):
    """Seconds of rounds, in turns."""

    parallel: list[float]
    group: list[float]
    peer: list[float]
    """Of pfl-research; none unless it was asked for."""
    bytes: int
    """Of the model."""

    @property
    def ratio(self) -> float:
        """Rate of the group over that of the parallel engine."""
        return statistics.median(self.parallel) / statistics.median(self.group)


class Exchange(NamedTuple):
    """Median seconds of a message with a model and its answer, and of the same bytes by themselves."""

    size: int
    whole_s: float
    bare_s: float
    overhead_s: float
    """Median of the differences in turns."""


def main(arguments: Sequence[str]) -> None:
    """Print the tables, and write them where requested."""
    parser = command("shards", __doc__)
    parser.add_argument("--workloads", type=among(WORKLOADS), default=["W3", "W7"], help="W3,W7,...")
    parser.add_argument("--rounds", type=int, default=8, help="timed rounds (default: %(default)s)")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="parameters of models: 1e4,1e6,...")
    parser.add_argument("--peer", action="store_true", help="race pfl-research in two processes, too")
    parser.add_argument("--home", type=Path, default=HOME, help="where data and environments lie")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between their markers")
    options = parser.parse_args(arguments)
    peer = python_of(PEER, options.home) if options.peer else None
    rates = {name: race(name, options.home, options.rounds, peer) for name in options.workloads}
    exchanges = [exchange(size) for size in options.sizes]
    overhead_s = statistics.median(found.overhead_s for found in exchanges[:2])
    measured = [(count, sleeping(count)) for count in CHECKED]
    text = "\n\n".join(
        [
            _rates(rates),
            _exchanges(exchanges),
            _scaling(rates, overhead_s),
            _checks(measured, overhead_s),
        ]
    )
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "shards", text)


def race(name: str, home: Path, rounds: int, peer: Path | None) -> Rates:
    """Time rounds of a workload with the parallel engine on two threads, with two workers and, by the
    interpreter `peer`, with pfl-research in two processes, in turns.
    """
    data = home / "data"
    spec = WORKLOADS[name].spec(data)
    alone, divided = (
        ExperimentSpec.model_validate(spec.model_dump(mode="json") | {"execution": execution})
        for execution in ({"engine": "parallel"}, {"engine": "parallel", "shards": SHARDS})
    )
    with ExitStack() as stack:
        url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/fedq.db"
        upgrade(url)
        parallel = stack.enter_context(_process(_play_alone, alone, data))
        leader = stack.enter_context(_process(_lead, divided, data, url))
        stack.enter_context(_process(_help, url, "worker-1", partial(_member, divided, data)))
        players: list[Callable[[int], float]] = [lambda _: _round(parallel), lambda _: _round(leader)]
        if peer is not None:
            folder = export(WORKLOADS[name], home, rounds + 1)
            contender = stack.enter_context(Contender(PEER, peer, folder))
            players.append(lambda number: contender.play(range(number, number + 1)).seconds)
        turns = [[play(number) for play in players] for number in range(1, rounds + 2)][1:]
        leader.send("bytes")
        parallel_s, group_s, *peer_s = [list(column) for column in zip(*turns, strict=True)]
        return Rates(parallel_s, group_s, peer_s[0] if peer_s else [], leader.recv())


def exchange(size: int, times: int = 30) -> Exchange:
    """Time a message with a model of `size` parameters and its answer, between two processes, in turns
    with the same bytes.
    """
    _work_as_a_member()
    with listen("127.0.0.1") as listener, _process(_answer, listener.getsockname()[1], size, times):
        alone, connection = _admitted(listener), _admitted(listener)
        alone.settimeout(LONG_S)
        peer = Peer(connection, LONG_S)
        # Another model in each round, as in a run: the same one would not be sent again.
        models, data = (
            itertools.cycle([torch.zeros(size), torch.zeros(size)]),
            memoryview(bytearray(4 * size)),
        )

        def ask() -> None:
            peer.send(ShardMessage({}, {"x": next(models)}))
            assert peer.receive() is not None

        turns = [(_timed(ask), _timed(lambda: _there_and_back(alone, data))) for _ in range(times)]
        peer.close()
        alone.close()
    # The first turns write to fresh memory.
    whole, bare = zip(*turns[2:], strict=True)
    overhead_s = statistics.median(one - other for one, other in zip(whole, bare, strict=True))
    return Exchange(size, statistics.median(whole), statistics.median(bare), overhead_s)


def sleeping(workers: int, rounds: int = 5) -> float:
    """Median seconds of a round in which each of `workers` sleeps instead of training a shard."""
    spec = ExperimentSpec.model_validate(SMALL)
    with ExitStack() as stack:
        url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/fedq.db"
        upgrade(url)
        database = stack.enter_context(closing(open_database(url)))
        advance = stack.enter_context(_leading(database, spec, lambda: Sleeping(spec, 0), workers))
        for number in range(1, workers):
            stack.enter_context(_process(_help, url, f"worker-{number}", partial(_sleeping, spec)))
        return statistics.median([_timed(advance) for _ in range(rounds + 1)][1:])


class Sleeping(Simulation):
    """A run whose shards take DELAY_S each, and no processor."""

    def __init__(self, spec: ExperimentSpec, seed: int) -> None:
        super().__init__(spec, seed)
        train = one_by_one(ENGINES[self.facts.choice.engine])

        def train_slowly(shards: Sequence[Job]) -> Sequence[Result]:
            time.sleep(DELAY_S * len(shards))
            return train(shards)

        self.share(train_slowly)


class SleepingMember(ShardMember):
    """A member of such a run."""

    def answer(self, message: ShardMessage) -> ShardMessage:
        """As any member, later."""
        time.sleep(DELAY_S)
        return super().answer(message)


def _member(spec: ExperimentSpec, data: Path) -> ShardMember:
    return ShardMember(Simulation(spec, 0, data_dir=data))


def _sleeping(spec: ExperimentSpec) -> ShardMember:
    return SleepingMember(Simulation(spec, 0))


def round_s(workers: int, shards: int, shard_s: float, model_bytes: int, overhead_s: float) -> float:
    """Seconds of a round by the model of scaling: the longest queue of shards, then at the run's worker
    the overhead of each shard that others train, and on its network the model to each member and a vector
    back for each of their shards.
    """
    queue = -(-shards // workers)
    away = shards - queue if workers > 1 else 0
    sent = (min(workers, shards) - 1 + away) * model_bytes / NETWORK_BYTES_S
    return queue * shard_s + sent + overhead_s * away


def _rates(rates: dict[str, Rates]) -> str:
    rows = [
        [name, report.numbers(found.parallel), report.numbers(found.group), f"{found.ratio:.2f}"]
        for name, found in rates.items()
    ]
    headings = ["workload", "parallel, two threads: round, s", "two workers: round, s", "rate, of parallel"]
    if any(found.peer for found in rates.values()):
        headings += ["pfl-research, two processes: round, s", "two workers are faster by"]
        for row, found in zip(rows, rates.values(), strict=True):
            ratios = [theirs / ours for theirs, ours in zip(found.peer, found.group, strict=True)]
            row += [report.numbers(found.peer), report.numbers(ratios)]
    return f"Measured, {SHARDS} shards (target: 0.9 of the rate):\n\n{report.table(headings, rows)}"


def _exchanges(exchanges: Sequence[Exchange]) -> str:
    rows = [
        [
            f"{found.size:,}",
            report.significant(1e3 * found.whole_s),
            report.significant(1e3 * found.bare_s),
            f"{1e3 * found.overhead_s:.2f}",
        ]
        for found in exchanges
    ]
    headings = "D", "model there, vector back, ms", "the same bytes alone, ms", "overhead, ms"
    return f"Measured, one shard (target: 5 ms and the transfer):\n\n{report.table(headings, rows)}"


def _scaling(rates: dict[str, Rates], overhead_s: float) -> str:
    rows = []
    for name, found in rates.items():
        cohort_s = 2 * statistics.median(found.group)
        for title, shards_of, scale in (
            ("strong: 256 shards of the same cohort", lambda _: 256, lambda _: 1),
            ("weak: the cohort grows with the workers", lambda count: 4 * count, lambda count: count),
        ):
            seconds = [
                round_s(
                    count,
                    shards_of(count),
                    cohort_s * scale(count) / shards_of(count),
                    found.bytes,
                    overhead_s,
                )
                for count in WORKERS
            ]
            speed = [seconds[0] * scale(count) / value for count, value in zip(WORKERS, seconds, strict=True)]
            rows.append([name, title, *(f"{value:.1f}" for value in speed)])
    headings = "workload", "scaling", *(f"{count} workers" for count in WORKERS)
    text = "Calculated, not measured: speed over one worker, whose network sends 1.25 GB/s:"
    return f"{text}\n\n{report.table(headings, rows)}"


def _checks(measured: Sequence[tuple[int, float]], overhead_s: float) -> str:
    rows = [
        [
            str(count),
            f"{1e3 * seconds:.0f}",
            f"{1e3 * round_s(count, CHECKED_SHARDS, DELAY_S, 40, overhead_s):.0f}",
        ]
        for count, seconds in measured
    ]
    text = f"The model of scaling, {CHECKED_SHARDS} shards that sleep for {1e3 * DELAY_S:.0f} ms each:"
    return f"{text}\n\n{report.table(('workers', 'measured round, ms', 'calculated, ms'), rows)}"


@contextmanager
def _process(target: Callable[..., None], *given: Any) -> Iterator[Connection]:
    """A process that runs `target` with one end of a pipe; this is the other."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *given))
    process.start()
    try:
        yield here
    finally:
        here.close()
        process.join()


def _round(player: Connection) -> float:
    player.send("round")
    seconds: float = player.recv()
    return seconds


def _rounds(pipe: Connection, simulation: Simulation, advance: Callable[[], object]) -> None:
    """Play a round whenever the other side asks, until it is gone."""
    try:
        while True:
            wanted = pipe.recv()
            x = next(iter(simulation.model().values()))
            total = sum(value.numel() for value in simulation.model().values())
            pipe.send(_timed(advance) if wanted == "round" else total * x.element_size())
    except EOFError:
        return


def _play_alone(pipe: Connection, spec: ExperimentSpec, data: Path) -> None:
    torch.set_num_threads(2)
    simulation = Simulation(spec, 0, data_dir=data)
    _rounds(pipe, simulation, simulation.advance)


def _lead(pipe: Connection, spec: ExperimentSpec, data: Path, url: str) -> None:
    torch.set_num_threads(1)
    simulation = Simulation(spec, 0, data_dir=data)
    with (
        closing(open_database(url)) as database,
        _leading(database, spec, lambda: simulation, 2) as advance,
    ):
        _rounds(pipe, simulation, advance)


def _help(pipe: Connection, url: str, worker: str, load: Callable[[], ShardMember]) -> None:
    """Help with the run that looks for members, until the other side is gone."""
    torch.set_num_threads(1)
    over = threading.Event()

    def watch() -> None:
        try:
            pipe.recv()
        except EOFError:
            over.set()

    threading.Thread(target=watch, daemon=True).start()
    with closing(open_database(url)) as database:
        while not over.wait(PACING.look_s):
            with database.transaction() as session:
                member = groups.join(session, Claimant(worker, (QUEUE,)), LEASE_S)
            if member is not None:
                serve(database, member, load, LEASE_S, over.is_set, PACING)


@contextmanager
def _leading(
    database: Database, spec: ExperimentSpec, build: Callable[[], Simulation], workers: int
) -> Iterator[Callable[[], object]]:
    """A run that this worker has claimed; the function advances it, once all others have joined."""
    # The database refuses data that nobody has uploaded, and needs to know of the shards only.
    stored = ExperimentSpec.model_validate(SMALL | {"execution": spec.execution})
    with database.transaction() as session:
        experiments.create(session, NewExperiment(stored))
        claim = runs.claim(session, Claimant("worker-0", (QUEUE,)), LEASE_S)
    assert claim is not None
    simulation = build()
    group = ShardGroup(database, claim, simulation, "127.0.0.1", lambda: None, PACING)
    group.open()

    def together() -> bool:
        with database.reading() as session:
            found = groups.list_groups(session, 1)
        return bool(found) and len(found[0].record.trained) >= workers

    complete = False

    def advance() -> object:
        nonlocal complete
        while not complete:
            simulation.advance()
            complete = together()
        return simulation.advance()

    try:
        yield advance
    finally:
        group.close()


def _answer(pipe: Connection, port: int, size: int, times: int) -> None:
    """The other side of `exchange`."""
    _work_as_a_member()
    bare, connection = (connect(f"127.0.0.1:{port}", CONNECTION, LONG_S) for _ in range(2))
    bare.settimeout(LONG_S)
    peer = Peer(connection, LONG_S)
    data, sums = memoryview(bytearray(4 * size)), torch.zeros(1, size)
    for _ in range(times):
        assert peer.receive() is not None
        peer.send(ShardMessage({"sums": True}, {"sums": sums}))
        _receive(bare, data)
        bare.sendall(data)
    with closing(peer), bare:
        try:
            pipe.recv()
        except EOFError:
            return


def _work_as_a_member() -> None:
    """Have one thread, and use freed memory again: the threads of OpenMP spin for milliseconds after
    each operation, and the first write to a page takes longer than to send it.
    """
    torch.set_num_threads(1)
    retain_freed_memory()


def _admitted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    admit(connection, lambda _: CONNECTION, LONG_S)
    return connection


def _there_and_back(connection: socket.socket, data: memoryview) -> None:
    connection.sendall(data)
    _receive(connection, data)


def _receive(connection: socket.socket, data: memoryview) -> None:
    while data:
        data = data[connection.recv_into(data) :]


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _sizes(text: str) -> list[int]:
    return [int(float(size)) for size in text.split(",")]
