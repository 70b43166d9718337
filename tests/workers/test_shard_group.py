"""Members of a group that stop, in each phase of a round: the round ends in time, in the same bits; and
what members keep, which is of use to those that stay.
"""

import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace

import psutil
import pytest
import torch
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.engine.assignment import Job, Result
from fedcore.engine.shard_messages import SCORES, ShardMessage
from fedcore.engine.shards import Sharded
from fedcore.platform.store import Database, Status, experiments, groups, open_database
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.groups import Membership
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import RunRecord
from fedcore.simulation.shard_member import ShardMember
from tests.builders.claims import LEASE_S, claim, claimant
from tests.builders.experiments import submit
from tests.builders.specifications import merged, specification
from tests.builders.transactions import read, write
from tests.engine.test_shards import LARGE_STEPS
from tests.support.polling import eventually
from tests.support.simulated_device import SimulatedDevice
from tests.workers.deployment import END_S, EXPERIMENT, PRODUCTION_IN_CI, Deployment, assert_undisturbed
from workers.peer import (
    FRAME,
    LARGE_BYTES,
    MESSAGE,
    NONCE_BYTES,
    SIGN,
    Peer,
    PeerLostError,
    admit,
    connect,
    listen,
)
from workers.shard_group import STRANGERS, GroupPacing, ShardGroup, serve

PACING = GroupPacing(look_s=0.02, connect_s=2.0, silence_s=2.0)
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
def group(
    database: Database, held: Claim, pacing: GroupPacing = PACING, host: str = "127.0.0.1"
) -> Iterator[Simulation]:
    """A run whose worker looks for members."""
    simulation = simulated(held)
    opened = ShardGroup(database, held, simulation, host, lambda: None, pacing)
    opened.open()
    try:
        yield simulation
    finally:
        opened.close()


def seated(database: Database, worker: str) -> Membership:
    return eventually(lambda: write(database, groups.join, claimant(worker), LEASE_S))


def come(member: Membership) -> socket.socket:
    return connect(member.address, member.connection, PACING.connect_s)


class Silent:
    """A member without threads, which shows no sign of life: as if its process were stopped."""

    def __init__(self, member: Membership) -> None:
        self._connection = come(member)

    def receive(self) -> None:
        """Take a message, to its last byte."""
        kind, size = SIGN, 0
        while kind != MESSAGE:
            kind, size = FRAME.unpack(self._get(FRAME.size))
        for dtype, *shape in json.loads(self._get(size))["tensors"].values():
            self._get(torch.empty(shape, dtype=getattr(torch, dtype)).nbytes)

    def send_part(self) -> None:
        """Send the beginning of an answer."""
        self._connection.sendall(FRAME.pack(MESSAGE, 1000))

    def close(self) -> None:
        self._connection.close()

    def _get(self, size: int) -> bytes:
        data = self._connection.recv(size, socket.MSG_WAITALL)
        assert len(data) == size
        return data


def before_it_connects(_: Membership) -> None:
    pass


def before_it_receives(member: Membership) -> Silent:
    return Silent(member)


def while_it_trains(member: Membership) -> Silent:
    silent = Silent(member)
    threading.Thread(target=silent.receive, daemon=True).start()
    return silent


def while_it_sends(member: Membership) -> Silent:
    silent = Silent(member)

    def answer() -> None:
        silent.receive()
        silent.send_part()

    threading.Thread(target=answer, daemon=True).start()
    return silent


def while_it_trains_with_signs_of_life(member: Membership) -> Peer:
    """As in a kernel that does not end."""
    return Peer(come(member), 60.0)


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
    database: Database, caplog: pytest.LogCaptureFixture, freeze: Callable[[Membership], Silent | Peer | None]
) -> None:
    caplog.set_level("INFO")
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    alone = simulated(held)
    with group(database, held) as simulation, ExitStack() as ending:
        frozen = freeze(seated(database, "frozen"))
        if frozen is not None:
            ending.callback(frozen.close)
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
            lambda: [one for one in read(database, groups.list_groups, 10) if "healthy" in one.record.trained]
        )
        assert sum(listed.record.trained.values()) == 3
        ended.set()
        helping.join()
        assert "healthy" not in read(database, groups.members, held).values()


def helper(
    database: Database,
    member: Membership,
    ended: threading.Event,
    loaded: ShardMember | None = None,
    pacing: GroupPacing = PACING,
) -> threading.Thread:
    arguments = (
        database,
        member,
        lambda: loaded or ShardMember(simulated(member.run)),
        LEASE_S,
        ended.is_set,
        pacing,
    )
    thread = threading.Thread(target=serve, args=arguments)
    thread.start()
    return thread


class Watched(ShardMember):
    """A member, which counts the batches that it scores."""

    scored = 0

    def answer(self, message: ShardMessage) -> ShardMessage:
        answer = super().answer(message)
        self.scored += len(answer.tensors.get(SCORES, ()))
        return answer


def test_members_help_to_evaluate(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write(database, experiments.create, NewExperiment(specification(LARGE_STEPS), owner="local"))
    held = claim(database, "leader")
    alone, watched = simulated(held), Watched(Simulation(ExperimentSpec.model_validate(held.spec), seed=0))
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


class Keeping(ShardMember):
    """A member, which notes whose memory comes with its shards."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(Simulation(spec, seed=0))
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
        self.simulation, self.alone = simulation, alone
        engine = simulation.context.engine
        assert isinstance(engine, Sharded)
        self.train = engine.train
        self.cohort: list[int] = []
        self.last: dict[int, Keeping | None] = {}
        """The member that was the last to train a client; None if the leader was."""
        simulation.share(self._observed)

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
    here, there = socket.socketpair()  # The peers close them.
    with closing(Peer(here, 10.0)) as sender, closing(Peer(there, 10.0)) as receiver:
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


def listening() -> set[tuple[str, int]]:
    """Where this process takes connections."""
    found = psutil.Process().net_connections("inet")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


def test_a_group_listens_on_its_host_alone(database: Database) -> None:
    """On one port, its members on none."""
    submit(database, execution={"shards": 3})
    held, before, ended = claim(database, "leader"), listening(), threading.Event()
    with group(database, held, host="127.0.0.3") as simulation:
        member = seated(database, "member")
        helping = helper(database, member, ended)
        simulation.advance()
        port = int(member.address.removeprefix("127.0.0.3:"))
        assert listening() - before == {("127.0.0.3", port)}
        ended.set()
        helping.join()
    assert listening() == before


WRONG = "0" * 32


@pytest.mark.parametrize("secret", [WRONG, "", "that of a member"])
def test_stranger_to_the_secret_of_a_free_seat_learns_nothing_and_takes_none(
    database: Database, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    caplog.set_level("INFO")
    submit(database, execution={"shards": 3})
    held, ended = claim(database, "leader"), threading.Event()
    with group(database, held) as simulation:
        member = seated(database, "member")
        helping = helper(database, member, ended)
        eventually(lambda: "member has joined" in caplog.text)
        stranger = replace(member, connection=member.connection if secret not in {WRONG, ""} else secret)
        with pytest.raises(PeerLostError, match="it has left"):
            come(stranger)
        assert "member has left" not in caplog.text
        simulation.advance()
        ended.set()
        helping.join()
    assert caplog.text.count("has joined") == 1


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", bytes(4096)])
def test_a_stranger_is_told_a_random_number_and_sent_away(database: Database, said: bytes) -> None:
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    with group(database, held):
        host, _, port = seated(database, "member").address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60.0) as stranger:
            told = stranger.recv(NONCE_BYTES, socket.MSG_WAITALL)
            assert len(set(told)) > 1
            stranger.sendall(said)
            with suppress(ConnectionResetError):
                assert stranger.recv(4096) == b""


def test_silent_strangers_keep_no_run_from_its_rounds(database: Database) -> None:
    """Not even so many that members are not admitted."""
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    alone = simulated(held)
    with ExitStack() as strangers, group(database, held) as simulation:
        host, _, port = seated(database, "member").address.rpartition(":")
        for _ in range(3 + STRANGERS):
            strangers.enter_context(socket.create_connection((host, int(port))))
        for _ in range(2):
            simulation.advance()
            alone.advance()
        assert simulation.checkpoint() == alone.checkpoint()
        assert threading.active_count() <= 3 + STRANGERS + 10


def test_a_member_leaves_a_worker_that_does_not_know_its_secret(database: Database) -> None:
    """As where the worker of the run is gone and another process has taken its port."""
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    with listen("127.0.0.1") as impostor:
        write(database, groups.announce, held, f"127.0.0.1:{impostor.getsockname()[1]}", 2)
        member = seated(database, "member")

        def answer() -> None:
            connection, _ = impostor.accept()
            with suppress(PeerLostError), connection:
                admit(connection, lambda _: WRONG, PACING.connect_s)
                assert connection.recv(1) == b""

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(PeerLostError, match="does not know the secret"):
            serve(database, member, lambda: ShardMember(simulated(held)), LEASE_S, lambda: False, PACING)
        answering.join()
    assert read(database, groups.members, held) == {}


def test_a_member_that_cannot_connect_gives_its_seat_back(database: Database) -> None:
    submit(database, execution={"shards": 3})
    held = claim(database, "leader")
    write(database, groups.announce, held, "127.0.0.1:1", 2)
    member = seated(database, "idle")
    pacing = GroupPacing(look_s=0.02, connect_s=0.2)
    with pytest.raises(PeerLostError):
        serve(database, member, lambda: ShardMember(simulated(held)), LEASE_S, lambda: False, pacing)
    assert read(database, groups.members, held) == {}


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


# Runs in shards, on several workers that are disturbed: rows and model are always the same.
SHARDS = 4
DOCUMENT = merged(EXPERIMENT, {"name": "in shards", "execution": {"shards": SHARDS}})


def with_members(deployment: Deployment, experiment: str, count: int) -> RunRecord:
    """Wait until a run in its middle is trained by `count` members besides its worker."""
    run = deployment.in_the_middle(experiment)
    eventually(lambda: len(deployment.members()) >= count and joined(deployment) >= count, timeout_s=END_S)
    return run


def joined(deployment: Deployment) -> int:
    texts = [log.read_text() for log in deployment.folder.glob("worker-*.log")]
    return sum(text.count("has joined the group") for text in texts)


@pytest.mark.slow
@PRODUCTION_IN_CI
@pytest.mark.parametrize("count", [*(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 3)), 2])
def test_the_number_of_workers_changes_no_bit(deployment: Deployment, count: int) -> None:
    with deployment.running(count=count):
        experiment = deployment.submit(DOCUMENT)
        with_members(deployment, experiment, count - 1)
        (run,) = deployment.ended(experiment)
        assert_undisturbed(deployment, run, SHARDS)
        eventually(lambda: not deployment.members(), timeout_s=END_S)


@pytest.mark.nightly
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_is_lost_changes_no_bit(embedded: Deployment, signum: signal.Signals) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        (pid,) = embedded.members().values()
        os.kill(pid, signum)
        (run,) = embedded.ended(experiment)
        assert_undisturbed(embedded, run, SHARDS)
    assert run.fence == before.fence


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_with_another(embedded: Deployment) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        embedded.send(before, signal.SIGKILL)
        (run,) = embedded.ended(experiment)
        assert_undisturbed(embedded, run, SHARDS)
    assert run.fence > before.fence


@pytest.mark.slow
@pytest.mark.nightly
def test_a_queued_run_comes_before_a_membership(embedded: Deployment) -> None:
    with embedded.running(count=2):
        first = embedded.submit(DOCUMENT)
        with_members(embedded, first, 1)
        second = embedded.submit(merged(DOCUMENT, {"name": "second", "execution": {"shards": None}}))
        eventually(lambda: embedded.run(second).status is not Status.QUEUED, timeout_s=END_S)
        assert embedded.run(first).status is Status.RUNNING
        (run,) = embedded.ended(first)
        assert_undisturbed(embedded, run, SHARDS)
