"""Members of a group that stop, in each phase of a round: the round ends in time, in the same bits; and
what members keep, which is of use to those that stay.
"""

import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from fedcore import ExperimentSpec, Simulation
from fedcore.engine.assignment import Job, Result
from fedcore.engine.shard_messages import SCORES, ShardMessage
from fedcore.platform.store import Database, experiments, groups, open_database
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim
from tests.documents import specification
from tests.engine.test_shards import LARGE_STEPS
from tests.platform.store.acts import LEASE_S, QUEUE, claim, read, submit, write
from tests.support.polling import eventually
from tests.support.simulated_device import SimulatedDevice
from workers.peer import LARGE_BYTES, Peer, PeerLostError
from workers.shard_group import GroupPacing, ShardGroup, serve

PACING = GroupPacing(look_s=0.02, connect_s=2.0, silence_s=0.5)
SIGN, MESSAGE = 0, 1
MANY = 10_000
NO_MORE_FILES = 3
"""A limit that only input, output and errors are below; open files stay open."""


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    with closing(open_database(sqlite_url)) as opened:
        yield opened


def simulated(held: Claim) -> Simulation:
    return Simulation(ExperimentSpec.model_validate(held.spec), seed=0)


@contextmanager
def group(database: Database, held: Claim, pacing: GroupPacing = PACING) -> Iterator[Simulation]:
    """A run whose worker looks for members."""
    simulation = simulated(held)
    opened = ShardGroup(database, held, simulation, "127.0.0.1", lambda: None, pacing)
    opened.open()
    try:
        yield simulation
    finally:
        opened.close()


def seated(database: Database, worker: str) -> Membership:
    return eventually(lambda: write(database, groups.join, worker, [QUEUE], LEASE_S))


def store_of(member: Membership) -> PrefixStore:
    host, _, port = member.address.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    store.set(member.connection, "ready")
    return PrefixStore(member.connection, store)


class Silent:
    """A member without threads, which shows no sign of life: as if its process were stopped."""

    def __init__(self, member: Membership) -> None:
        self._group: Any = ProcessGroupGloo(store_of(member), 1, 2, timedelta(seconds=10))

    def receive(self) -> None:
        """Take a message, to its last byte."""
        kind, size = SIGN, 0
        while kind != MESSAGE:
            kind, size = self._get(torch.empty(2, dtype=torch.int64)).tolist()
        header = json.loads(bytes(self._get(torch.empty(size, dtype=torch.uint8)).numpy()))
        for dtype, *shape in header["tensors"].values():
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            if tensor.numel():
                self._get(tensor.view(-1).view(torch.uint8))

    def send_part(self) -> None:
        """Send the beginning of an answer."""
        self._group.send([torch.tensor([MESSAGE, 1000])], 0, 0).wait(timedelta(seconds=10))

    def _get(self, value: Tensor) -> Tensor:
        self._group.recv([value], 0, 0).wait(timedelta(seconds=10))
        return value


def before_it_connects(_: Membership) -> object:
    return None


def before_it_receives(member: Membership) -> object:
    return Silent(member)


def while_it_trains(member: Membership) -> object:
    silent = Silent(member)
    threading.Thread(target=silent.receive, daemon=True).start()
    return silent


def while_it_sends(member: Membership) -> object:
    silent = Silent(member)

    def answer() -> None:
        silent.receive()
        silent.send_part()

    threading.Thread(target=answer, daemon=True).start()
    return silent


def while_it_trains_with_signs_of_life(member: Membership) -> object:
    """As in a kernel that does not end."""
    return Peer(store_of(member), 1, PACING.connect_s, 60.0)


@pytest.mark.parametrize(
    "freeze",
    [
        before_it_connects,
        before_it_receives,
        while_it_trains,
        while_it_sends,
        while_it_trains_with_signs_of_life,
    ],
)
def test_a_member_that_stops_costs_no_more_than_the_round(
    database: Database, caplog: pytest.LogCaptureFixture, freeze: Callable[[Membership], object]
) -> None:
    caplog.set_level("INFO")
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    alone = simulated(held)
    with group(database, held) as simulation:
        frozen = freeze(seated(database, "frozen"))
        if frozen is not None:
            eventually(lambda: "frozen has joined" in caplog.text)
        for _ in range(2):
            simulation.advance()
            alone.advance()
        assert ("frozen has left" in caplog.text) is (frozen is not None)
        ended = threading.Event()
        helping = helper(database, seated(database, "healthy"), ended)
        eventually(lambda: "healthy has joined" in caplog.text)
        simulation.advance()
        alone.advance()
        assert simulation.checkpoint() == alone.checkpoint()
        (listed,) = eventually(
            lambda: [found for found in read(database, groups.list_groups, 10) if "healthy" in found.trained]
        )
        assert sum(listed.trained.values()) == 3
        ended.set()
        helping.join()
        assert "healthy" not in read(database, groups.members, held).values()


def helper(
    database: Database,
    member: Membership,
    ended: threading.Event,
    loaded: Simulation | None = None,
    pacing: GroupPacing = PACING,
) -> threading.Thread:
    arguments = (
        database,
        member,
        lambda: loaded or simulated(member.run),
        LEASE_S,
        ended.is_set,
        pacing,
    )
    thread = threading.Thread(target=serve, args=arguments)
    thread.start()
    return thread


class Watched(Simulation):
    """A member's run, which counts the batches that it scores."""

    scored = 0

    def answer(self, message: ShardMessage) -> ShardMessage:
        answer = super().answer(message)
        self.scored += len(answer.tensors.get(SCORES, ()))
        return answer


def test_members_help_to_evaluate(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write(database, experiments.create, NewExperiment(specification(LARGE_STEPS), owner="local"))
    held = claim(database, "leader")
    alone, watched = simulated(held), Watched(ExperimentSpec.model_validate(held.spec), seed=0)
    ended = threading.Event()
    with group(database, held) as simulation:
        helping = helper(database, seated(database, "healthy"), ended, watched)
        eventually(lambda: "healthy has joined" in caplog.text)
        for _ in range(2):
            expected, made = alone.advance(), simulation.advance()
            assert replace(made, seconds=0) == replace(expected, seconds=0)
        ended.set()
        helping.join()
    assert watched.scored > 0


class Keeping(Simulation):
    """A member's run, which notes whose memory comes with its shards."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec, seed=0)
        self.sent: dict[int, bool] = {}
        """By client that it has trained in this round."""
        self.trained: set[int] = set()
        """The clients that it has trained in earlier rounds."""
        self.spared = self.renewed = False
        """Memory was not sent; that of a client which it had trained before another did was sent again."""

    def answer(self, message: ShardMessage) -> ShardMessage:
        clients, rows = message.tensors["clients"].tolist(), message.header["memory_rows"]
        assert len(message.tensors["memory.control"]) == len(rows)
        self.sent |= {client: row in rows for row, client in enumerate(clients)}
        return super().answer(message)

    def end_round(self) -> None:
        self.spared |= not all(self.sent.values())
        self.renewed |= any(sent and client in self.trained for client, sent in self.sent.items())
        self.trained |= self.sent.keys()
        self.sent.clear()


class Rounds:
    """Rounds of a group's run, and of the same run by itself."""

    def __init__(self, simulation: Simulation, alone: Simulation) -> None:
        self.simulation, self.alone, self.train = simulation, alone, simulation.train_shards
        self.cohort: list[int] = []
        self.last: dict[int, Keeping | None] = {}
        """The member that was the last to train a client; None if the leader was."""
        simulation.train_shards = self._observed

    def play(self, members: Sequence[Keeping]) -> None:
        """Play rounds until each member was spared memory and was sent memory again."""
        while not all(member.spared and member.renewed for member in members):
            self.simulation.advance()
            self.alone.advance()
            assert self.simulation.checkpoint() == self.alone.checkpoint()
            for member in members:
                assert member.sent == {client: self.last.get(client) is not member for client in member.sent}
            self.last.update(dict.fromkeys(self.cohort))
            for member in members:
                self.last.update(dict.fromkeys(member.sent, member))
                member.end_round()

    def _observed(self, shards: Sequence[Job]) -> Sequence[Result]:
        self.cohort = [client for shard in shards for client in shard.work.clients.tolist()]
        return self.train(shards)


@pytest.mark.parametrize("count", [1, 2])
def test_members_are_sent_the_memory_of_the_clients_that_others_trained_last(
    database: Database, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """And of no other, in the same bits, while one of `count` members is replaced."""
    caplog.set_level("INFO")
    submit(
        database,
        problem={"dataset": {"generate": {"clients": 12}}},
        algorithm={"kind": "scaffold"},
        participation={"kind": "uniform", "clients_per_round": 8},
        execution={"shards": 4, "engine": "reference"},
        rounds=MANY,
    )
    held, patient = claim(database, "leader"), replace(PACING, silence_s=60.0)

    @contextmanager
    def joined(worker: str) -> Iterator[Keeping]:
        ended, keeping = threading.Event(), Keeping(ExperimentSpec.model_validate(held.spec))
        helping = helper(database, seated(database, worker), ended, keeping, patient)
        eventually(lambda: f"{worker} has joined" in caplog.text)
        try:
            yield keeping
        finally:
            ended.set()
            helping.join()

    with group(database, held, patient) as simulation, ExitStack() as stack:
        rounds = Rounds(simulation, simulated(held))
        others = [stack.enter_context(joined(f"member-{number}")) for number in range(1, count)]
        for worker in ("lost", "replaced"):
            with joined(worker) as member:
                rounds.play([*others, member])


@contextmanager
def connected() -> Iterator[tuple[Peer, Peer]]:
    """Both sides of a connection."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found: list[Peer] = []
    connecting = threading.Thread(
        target=lambda: found.append(
            Peer(TCPStore("127.0.0.1", store.port, wait_for_workers=False), 1, 10.0, 10.0)
        )
    )
    connecting.start()
    sender = Peer(store, 0, 10.0, 10.0)
    connecting.join()
    (receiver,) = found
    with closing(sender), closing(receiver):
        yield sender, receiver


def test_a_message_from_a_device_arrives_on_the_host() -> None:
    values = torch.arange(6.0).view(3, 2)
    with connected() as (sender, receiver), SimulatedDevice():
        sender.send(ShardMessage({}, {"rows": values.to("meta").t(), "x": values[0].to("meta")}))
        message = receiver.receive(10.0)
    assert message is not None
    assert torch.equal(message.tensors["rows"], values.t())
    assert torch.equal(message.tensors["x"], values[0])


def test_large_tensors_are_received_into_memory_that_nothing_refers_to_any_more() -> None:
    rows = torch.arange(LARGE_BYTES // 8 + 3, dtype=torch.int64).view(1, -1)
    sent = {"rows": rows, "doubles": rows[0].double(), "few": rows[0, :3].clone()}
    assert all(value.nbytes >= LARGE_BYTES for name, value in sent.items() if name != "few")
    with connected() as (sender, receiver):

        def exchange(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            sender.send(ShardMessage({}, tensors))
            message = receiver.receive(60.0)
            assert message is not None
            return message.tensors

        first = exchange(sent)
        assert all(torch.equal(first[name], value) for name, value in sent.items())
        later = exchange({"rows": -rows})
        assert torch.equal(later["rows"], -rows)
        assert torch.equal(first["rows"], rows), "the first are still used"
        part, freed = first["doubles"][5:6], first["rows"].data_ptr()
        del first
        again = exchange({"rows": 2 * rows, "doubles": rows[0].double()})
        assert torch.equal(again["rows"], 2 * rows)
        assert again["rows"].data_ptr() == freed
        assert part.item() == 5.0, "a view of the first is still used"


def test_a_member_that_cannot_connect_gives_its_seat_back(database: Database) -> None:
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    write(database, groups.announce, held, "127.0.0.1:1", 2)
    member = seated(database, "idle")
    pacing = GroupPacing(look_s=0.02, connect_s=0.2)
    with pytest.raises(PeerLostError):
        serve(database, member, lambda: simulated(held), LEASE_S, lambda: False, pacing)
    assert read(database, groups.members, held) == {}


def test_a_member_that_waits_for_a_connection_leaves_for_a_queued_run(database: Database) -> None:
    """The worker of the run, stopped, takes connections and says nothing."""
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        write(database, groups.announce, held, f"127.0.0.1:{stopped.getsockname()[1]}", 2)
        member = seated(database, "idle")
        patient = GroupPacing(look_s=0.02, connect_s=3600.0)
        submit(database)
        serve(database, member, lambda: simulated(held), LEASE_S, lambda: False, patient)
    assert read(database, groups.members, held) == {}
    assert claim(database, "idle").run_id != held.run_id


def test_a_group_that_cannot_be_opened_trains_alone(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    simulation, alone = simulated(held), simulated(held)
    opened = ShardGroup(database, held, simulation, "127.0.0.1", lambda: None, PACING)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (NO_MORE_FILES, hard))
    try:
        opened.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "trains its shards on one worker" in caplog.text
    simulation.advance()
    alone.advance()
    opened.close()
    assert simulation.checkpoint() == alone.checkpoint()
