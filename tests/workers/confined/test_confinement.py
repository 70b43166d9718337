"""Bundles that mean harm, or do it by accident, harm nobody: the run fails, and says why.

Under bubblewrap they also learn nothing. Limits alone leave files, network and processes of the same
user open, as docs/security.md says, so those tests are of bubblewrap.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedcore.errors import UserCodeError
from tests.support.polling import eventually
from tests.workers.confined.conftest import BUBBLEWRAP, Open, packed
from workers.confined.confinement import Confinement
from workers.confined.limits import MAX_PROCESSES
from workers.confined.protocol import ProtocolError
from workers.confined.sandbox import Sandbox, remove_abandoned

pytestmark = pytest.mark.slow

MEMORY = 512 << 20
ANSWER_S = 60.0


def call(sandbox: Sandbox, timeout_s: float = ANSWER_S) -> Any:
    """Import the bundle, which does its worst; returns its kinds."""
    session = sandbox.session()
    try:
        answer = session.request({"do": "call", "name": "components", "document": None}, timeout_s).fields
    finally:
        session.close()
    return answer.get("value", answer.get("error"))


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Where the service keeps its state, inside a folder that bundles see.

    Its path does not tell them of pytest.
    """
    with tempfile.TemporaryDirectory() as data:
        home = Path(data, "home")
        home.mkdir()
        Path(data, "shown").touch()
        yield home


@pytest.fixture(scope="module")
def opened(opened: Open, home: Path) -> Open:
    """As everywhere, with this state of the service and less memory."""
    return partial(opened, home=home, data_dir=home.parent, code_memory_bytes=MEMORY)


def learned(sandbox: Sandbox) -> Any:
    """The JSON value in the message of the exception that the bundle raises."""
    return json.loads(call(sandbox)["error"]["message"])


def test_a_bundle_that_does_no_harm_answers(opened: Open, confinement: Confinement) -> None:
    assert call(opened(confinement)) == {"algorithms": ["mine"]}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param("import os; os._exit(7)", "exit code 7", marks=pytest.mark.nightly),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        (
            "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)",
            "ended in the middle",
        ),
    ],
    ids=["exits", "crashes", "kills its parent"],
)
def test_a_process_that_ends_is_named_as_the_cause(
    opened: Open, confinement: Confinement, source: str, said: str
) -> None:
    sandbox = opened(confinement, source)
    with pytest.raises(UserCodeError, match=said):
        call(sandbox)
    assert sandbox.processes() == []


def test_an_exit_of_python_is_an_error_with_its_line(opened: Open, confinement: Confinement) -> None:
    error = call(opened(confinement, "import sys\n\nsys.exit(0)"))["error"]
    assert (error["type"], error["file"], error["line"]) == ("SystemExit", "mine.py", 3)


def test_a_loop_without_end_is_ended(opened: Open, confinement: Confinement) -> None:
    sandbox = opened(confinement, "while True:\n    pass")
    began = time.monotonic()
    with pytest.raises(UserCodeError, match="longer than 1 s"):
        call(sandbox, timeout_s=1.0)
    assert time.monotonic() - began < ANSWER_S / 2
    assert sandbox.processes() == []


def test_a_fork_bomb_is_ended_whole(opened: Open, confinement: Confinement) -> None:
    # 512 processes at most, should nothing stop it.
    sandbox = opened(
        confinement,
        "import os, time\nfor _ in range(9):\n    os.fork()\n    time.sleep(0.2)\ntime.sleep(600)",
    )
    with pytest.raises(UserCodeError, match=f"more than {MAX_PROCESSES} processes"):
        call(sandbox)
    assert sandbox.processes() == []


def test_memory_of_one_process_is_limited(opened: Open, confinement: Confinement) -> None:
    source = "held = [bytearray(1 << 20) for _ in range(100_000)]"
    error = call(opened(confinement, source))
    assert error["kind"] == "memory"


def test_memory_of_all_processes_is_limited(opened: Open, confinement: Confinement) -> None:
    source = (
        "import os, time\nfor _ in range(3):\n    os.fork()\nheld = bytearray(200 << 20)\ntime.sleep(600)"
    )
    with pytest.raises(UserCodeError, match=f"more than {MEMORY} bytes of memory"):
        call(opened(confinement, source))


def test_output_is_discarded(opened: Open, confinement: Confinement) -> None:
    prints = (
        "import sys\nfor _ in range(1024):\n    print('x' * (1 << 20))\n    sys.stderr.write('y' * 1024)\n"
    )
    assert "defines no component" in call(opened(confinement, prints))["error"]["message"]


def test_files_have_a_largest_size(opened: Open, confinement: Confinement) -> None:
    source = """
import json, os, tempfile
wrote = 0
with tempfile.TemporaryFile(buffering=0) as file:
    try:
        while wrote < 3 << 30:
            wrote += file.write(bytes(16 << 20))
    except OSError:
        pass
raise RuntimeError(json.dumps(wrote))
"""
    assert learned(opened(confinement, source)) <= 1 << 30


@pytest.mark.parametrize(
    "message",
    [
        "b'\\xff' * 1000",
        "struct.pack('!IQ', 2, 1 << 62) + b'{}'",
        "struct.pack('!IQ', 2, 0) + b'[]'",
        "struct.pack('!IQ', 1000, 0) + b'[' * 1000",
        "struct.pack('!IQ', 4, 0) + b'\\xff\\xfe12'",
    ],
    ids=["no header", "too long", "no object", "too deep", "no text"],
)
def test_a_malformed_message_is_an_error_of_the_bundle(
    opened: Open, confinement: Confinement, message: str
) -> None:
    source = f"""
import os, socket, stat, struct
for descriptor in range(3, 30):
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.write(descriptor, {message})
    except OSError:
        pass
"""
    sandbox = opened(confinement, source)
    with pytest.raises(ProtocolError):
        call(sandbox)


def test_half_a_message_is_waited_for_no_longer_than_a_whole_one(opened: Open) -> None:
    source = """
import os, stat, time
for descriptor in range(3, 30):
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            while True:
                os.write(descriptor, bytes(1))
                time.sleep(0.5)
    except OSError:
        pass
"""
    with pytest.raises(UserCodeError, match="longer than 2 s"):
        call(opened("limits", source), timeout_s=2.0)


def test_processes_that_are_left_behind_end_with_the_session(opened: Open, confinement: Confinement) -> None:
    left_behind = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
    sandbox = opened(confinement, left_behind)
    assert call(sandbox)["kind"] == "code"
    assert not sandbox.alive
    assert sandbox.processes() == []


def test_a_connection_that_is_left_open_does_not_keep_the_worker_waiting(
    opened: Open, confinement: Confinement
) -> None:
    keeps = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos._exit(3)"
    began = time.monotonic()
    with pytest.raises(UserCodeError, match="exit code 3"):
        call(opened(confinement, keeps))
    assert time.monotonic() - began < ANSWER_S / 2


def test_no_bundle_inherits_environment_or_descriptors(
    opened: Open, confinement: Confinement, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDQ_DATABASE_URL", "postgresql://user:secret@db/fedq")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    source = """
import json, os
held = []
for name in os.listdir("/proc/self/fd"):
    try:
        held.append(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
raise RuntimeError(json.dumps({"environment": dict(os.environ), "held": held}))
"""
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - its signature
        found = learned(opened(confinement, source, home=tmp_path))
    assert "secret" not in json.dumps(found)
    assert {name for name in found["environment"] if name.startswith("FEDQ_")} == {
        "FEDQ_DATA_DIR",
        "FEDQ_MODELS_ALLOWED",
    }


@BUBBLEWRAP
def test_no_other_process_is_seen(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    source = f"""
import json, os
seen = {{}}
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            seen[name] = open(f"/proc/{{name}}/environ").read() + open(f"/proc/{{name}}/cmdline").read()
        except OSError as error:
            seen[name] = ""
try:
    os.kill({os.getpid()}, 0)
    seen["killable"] = "yes"
except OSError:
    pass
raise RuntimeError(json.dumps(seen))
"""
    seen = learned(opened("bubblewrap", source))
    # The reaper of bubblewrap, the fork server, and this process.
    assert len(seen) == 3
    assert "secret" not in json.dumps(seen)
    assert "pytest" not in json.dumps(seen)


@BUBBLEWRAP
def test_only_the_scratch_folder_can_be_written(opened: Open, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    source = f"""
import json, os
wrote = []
for path in ["/new", "/usr/new", "/dev/new", "/given/new", "/given/bundle/mine.py", "/given/uploads/new",
             os.path.dirname(os.__file__) + "/new", {str(outside)!r}, "/proc/sys/kernel/hostname",
             "/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj", "/tmp/new", "/dev/shm/new"]:
    try:
        # Opened only: the settings of the kernel are those of this machine.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    except OSError:
        continue
    wrote.append(path)
raise RuntimeError(json.dumps(wrote))
"""
    assert learned(opened("bubblewrap", source)) == ["/tmp/new", "/dev/shm/new"]
    assert outside.read_text() == "as it was"


@BUBBLEWRAP
def test_files_of_the_service_cannot_be_read(opened: Open, home: Path, tmp_path: Path) -> None:
    secrets = [folder / "api-key" for folder in (home, tmp_path)]
    for secret in secrets:
        secret.write_text("secret")
    paths = [
        *map(str, secrets),
        "/etc/passwd",
        "/etc/shadow",
        str(Path.cwd() / "pyproject.toml"),
        "/root/.bashrc",
    ]
    source = f"""
import json, os
etc = os.listdir("/etc") if os.path.exists("/etc") else []
raise RuntimeError(json.dumps([etc, *(path for path in {paths!r} if os.path.exists(path))]))
"""
    etc, *found = learned(opened("bubblewrap", source))
    assert found == []
    # What the loader of libraries reads.
    assert set(etc) <= {"alternatives", "ld.so.cache"}


@BUBBLEWRAP
def test_the_state_of_the_service_is_hidden_inside_a_folder_that_is_shown(opened: Open, home: Path) -> None:
    (home / "fedq.db").write_text("secret")
    source = f"""
import json, os
raise RuntimeError(json.dumps([os.listdir({str(home.parent)!r}), os.listdir({str(home)!r})]))
"""
    listed = learned(opened("bubblewrap", source))
    assert [sorted(listed[0]), listed[1]] == [["home", "shown"], []]


@pytest.fixture
def listener() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as network,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0fedq-test-{os.getpid()}")
        abstract.listen()
        yield network, abstract


@BUBBLEWRAP
def test_there_is_no_network(opened: Open, listener: tuple[socket.socket, socket.socket]) -> None:
    network, abstract = listener
    source = f"""
import json, socket
reached = []
addresses = [(socket.AF_INET, {network.getsockname()!r}), (socket.AF_UNIX, {abstract.getsockname()!r})]
for family, address in addresses:
    with socket.socket(family) as connection:
        try:
            connection.connect(address)
            reached.append(str(address))
        except OSError:
            pass
raise RuntimeError(json.dumps(reached))
"""
    assert learned(opened("bubblewrap", source)) == []


@BUBBLEWRAP
def test_there_are_no_privileges_to_be_had(opened: Open) -> None:
    source = """
import ctypes, json
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
unshare = ctypes.CDLL(None).unshare
raise RuntimeError(json.dumps([status["CapEff"].strip(), status["NoNewPrivs"].strip(),
                               unshare(CLONE_NEWUSER), unshare(CLONE_NEWNS)]))
"""
    assert learned(opened("bubblewrap", source)) == ["0" * 16, "1", -1, -1]


def test_nothing_outlives_the_sandbox(opened: Open, confinement: Confinement) -> None:
    before = set(psutil.Process().children(recursive=True))
    sandbox = opened(confinement, code_round_seconds=7)  # of its own
    call(sandbox)
    folder = sandbox.uploads.parent
    started = set(psutil.Process().children(recursive=True)) - before
    assert started
    remove_abandoned()
    assert folder.exists()
    sandbox.close()
    eventually(lambda: not any(process.is_running() for process in started), timeout_s=ANSWER_S)
    assert not folder.exists()


OWNER = """
import sys, time
from pathlib import Path

from fedcore.settings import Settings
from workers.confined.sandbox import Sandbox

archive, confinement = Path(sys.argv[1]).read_bytes(), sys.argv[2]
sandbox = Sandbox(archive, Settings(_env_file=None, code_confinement=confinement))
session = sandbox.session()
print("ready", flush=True)
session.request({"do": "call", "name": "components", "document": None}, 600.0)
"""
"""A process that waits for a bundle."""


def test_nothing_outlives_a_worker_that_is_killed(
    tmp_path: Path, confinement: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "bundle.tar"
    archive.write_bytes(packed(tmp_path / "mylab", "import time\ntime.sleep(600)"))
    words = [sys.executable, "-c", OWNER, str(archive), confinement]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        # With bubblewrap, two more processes.
        least = 4 if confinement == "bubblewrap" else 2
        eventually(
            lambda: len(psutil.Process(owner.pid).children(recursive=True)) >= least, timeout_s=ANSWER_S
        )
        started = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
        (folder,) = tmp_path.glob("fedq-bundle-*")
    eventually(lambda: not any(map(_alive, started)), timeout_s=ANSWER_S)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove_abandoned()
    assert not folder.exists()


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
