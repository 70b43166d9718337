"""`fedq run`, with its processes."""

import json
import os
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedcore import run
from fedcore.bundles import digest as bundle_digest
from fedcore.bundles import pack
from fedcore.settings import settings
from fedq.cli import main
from fedq.client import Client
from fedq.local.folder import ExperimentFolder
from fedq.planning.seconds import SPREAD
from tests.builders.runs import carry_out
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, TWO_ARMS, merged, specification
from tests.fedq.cli.conftest import Fedq, client, fedq
from tests.support.polling import eventually
from tests.support.service import Service

__all__ = ["client", "fedq"]

pytestmark = pytest.mark.slow

START_S = 240.0
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "extensions"
TIMES = ("seconds", "committed_at")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDQ_SLICE_SECONDS", "0.05")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # `fedq run` sets it for its processes
    settings.cache_clear()
    yield
    settings.cache_clear()


def spec_file(folder: Path, document: dict[str, Any]) -> Path:
    file = folder / "spec.json"
    file.write_text(json.dumps(document))
    return file


def call(*arguments: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def bits(folder: Path) -> dict[str, Any]:
    """Everything that a repetition must have the same: by run, its rounds and its models."""
    opened = ExperimentFolder(folder)
    found = {key: opened.run(key) for key in opened.run_keys()}
    return {
        str(key): (
            [{name: value for name, value in row.items() if name not in TIMES} for row in files.rows()],
            [ended.provenance.get(key) for key in ("model_sha256", "best_model")]
            if (ended := files.read())
            else None,
        )
        for key, files in found.items()
    }


@pytest.mark.parametrize(
    ("processes", "kills"), [(1, (60,)), pytest.param(2, (60, 250), marks=pytest.mark.nightly)]
)
def test_killed_at_any_time_it_continues_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, kills: tuple[int, ...]
) -> None:
    """It is killed once so many rounds are committed, of 1,200 of both arms."""
    document = merged(
        SYNTHETIC,
        {"rounds": 600, "seeds": [0], "sweep": {"algorithm": [{"kind": "scaffold"}, {"kind": "fedavg"}]}},
    )
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    shared = f"--processes={processes}"
    command = [sys.executable, "-m", "fedq.cli", "run", str(file), f"--output={out}", shared]
    for rounds in kills:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                if rounds == kills[0]:
                    eventually(partial(has_committed, out, 1), timeout_s=START_S)
                    assert call("run", file, "--output", out) == 4
                    assert "another process computes run" in capsys.readouterr().err
                eventually(partial(has_committed, out, rounds), timeout_s=START_S)
            finally:
                process.send_signal(signal.SIGKILL)
    interrupted = bits(out)
    assert any(0 < len(rows) < 600 for rows, _ in interrupted.values())
    assert call("run", file, "--output", out, shared) == 0
    assert call("run", file, "--output", tmp_path / "whole", shared) == 0
    assert bits(out) == bits(tmp_path / "whole")
    assert all(len(rows) == 600 for rows, _ in bits(out).values())


def test_a_plan_knows_the_rates_of_the_runs_that_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spec_file(tmp_path, merged(SYNTHETIC, {"rounds": 20, "seeds": [0, 1]}))

    def planned() -> dict[str, Any]:
        capsys.readouterr()
        assert call("plan", file, "--json") == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert "has been seen on this machine yet" in planned()["seconds_source"]
    out = tmp_path / "out"
    assert call("run", file, "--output", out, "--processes", 1) == 0
    folder = ExperimentFolder(out)
    seconds = [sum(row["seconds"] for row in folder.run(key).rows()) for key in folder.run_keys()]
    plan = planned()
    assert plan["seconds_low"] == pytest.approx(2 * min(seconds) / SPREAD)
    assert plan["seconds_high"] == pytest.approx(2 * max(seconds) * SPREAD)
    # Runs that had ended before are not counted again.
    assert call("run", file, "--output", out) == 0
    assert planned()["seconds_source"] == "2 recent runs of logistic, engine auto, on this machine"


def test_only_the_processes_that_compute_load_pytorch(tmp_path: Path) -> None:
    code = """\
import sys
from fedq.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""
    file, out = spec_file(tmp_path, merged(SYNTHETIC, {"rounds": 1, "seeds": [0]})), tmp_path / "out"
    command = [sys.executable, "-c", code, "run", str(file), f"--output={out}"]
    subprocess.run(command, env={**os.environ, "FEDQ_DEVICE": "cpu"}, timeout=START_S, check=True)
    assert committed(out) == 1


def has_committed(out: Path, rounds: int) -> bool:
    return committed(out) >= rounds


def committed(out: Path) -> int:
    """Rounds in checkpoints or before them, over all runs."""
    return sum(
        len(file.read_bytes().splitlines())
        for file in out.glob("runs/*/rounds.jsonl")
        if (file.parent / "checkpoint.safetensors").exists() or (file.parent / "model.safetensors").exists()
    )


def test_sigterm_ends_it_between_two_rounds(tmp_path: Path) -> None:
    file, out = spec_file(tmp_path, merged(SYNTHETIC, {"rounds": 100_000})), tmp_path / "out"
    command = [sys.executable, "-m", "fedq.cli", "run", str(file), f"--output={out}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: committed(out) > 0, timeout_s=START_S)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in told


def test_parts_share_a_folder_and_are_imported_as_the_service_would_have_run_them(
    tmp_path: Path, service: Service, client: Client, fedq: Fedq
) -> None:
    file, out = spec_file(tmp_path, TWO_ARMS), tmp_path / "out"
    assert fedq("run", str(file), "--output", str(out), "--part", "2/2").code == 0
    refused = fedq("import", str(out))
    assert refused.code == 2
    assert "3 of 6 runs" in refused.err
    whole = fedq("run", str(file), "--output", str(out), "--part", "1/2")
    assert whole.code == 0
    id = fedq("import", str(out)).out.strip()
    assert fedq("import", str(out)).out.strip() == id
    original = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 6)
    assert rounds_of(client, id) == rounds_of(client, original)
    here, there = (fedq("results", one).out for one in (id, original))
    assert whole.out == here == there
    assert client.experiment(id).status == "succeeded"
    assert client.runs(id)[0].provenance["threads"] == 1


def rounds_of(client: Client, id: str) -> dict[tuple[int, int], list[dict[str, Any]]]:
    return {
        (one.arm, one.seed): [row.model_dump(exclude=set(TIMES)) for row in client.rounds(one.id)]
        for one in client.runs(id)
    }


SEARCHES: dict[str, dict[str, Any]] = {
    "successive_halving": {
        "sweep": {"local.lr": [0.001 * 2**step for step in range(9)]},
        "search": {"kind": "successive_halving", "metric": "suboptimality", "min_rounds": 1},
    },
    "asha": {
        "sweep": {"local.lr": [0.001 * 2**step for step in range(9)]},
        "search": {"kind": "asha", "metric": "suboptimality", "min_rounds": 1},
    },
    "study": {
        "search": {
            "kind": "study",
            "metric": "suboptimality",
            "trials": 4,
            "parallel": 2,
            "space": {"local.lr": {"kind": "float", "low": 0.001, "high": 0.3, "log": True}},
        },
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_decides_as_in_one_process_and_can_be_resumed(
    kind: str, tmp_path: Path, fedq: Fedq, client: Client
) -> None:
    document = merged(
        QUADRATIC, {"rounds": 9, "seeds": [0, 1], "execution": {"engine": "reference"}, **SEARCHES[kind]}
    )
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    assert fedq("run", str(file), "--output", str(out), "--part", "1/2").code == 2
    assert fedq("run", str(file), "--output", str(out), "--processes", "2").code == 0
    played: dict[str, list[float | None]] = {}
    for report in run(specification(document)):
        played.setdefault(f"{report.arm}-{report.seed}", []).append(report.value("suboptimality"))
    found = bits(out)
    assert {
        key: [row["extra"]["suboptimality"] for row in rows] for key, (rows, _) in found.items()
    } == played
    # As if it had been killed: one run is back at its beginning, and its search has not ended.
    (out / "runs" / "1-1" / "run.json").unlink()
    (out / "runs" / "1-1" / "rounds.jsonl").unlink()
    assert fedq("run", str(file), "--output", str(out), "--processes", "2").code == 0
    assert bits(out) == found
    assert client.experiment(fedq("import", str(out)).out.strip()).status == "succeeded"


def test_a_run_that_fails_is_named_and_tried_again(
    tmp_path: Path, fedq: Fedq, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "own.csv"
    table.write_text("width,height,label\n" + "".join(f"{one},{one % 3},{one % 2}\n" for one in range(40)))
    block = json.loads(fedq("data", "keep", str(table), "--to", str(tmp_path / "data")).out)
    problem = {"dataset": block, "model": {"kind": "logistic"}, "partition": {"kind": "iid", "clients": 2}}
    document = {
        **merged(SYNTHETIC, {"rounds": 1, "participation": None}),
        "problem": problem,
    }
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    monkeypatch.setenv("FEDQ_DATA_DIR", str(tmp_path / "empty"))
    settings.cache_clear()
    failed = fedq("run", str(file), "--output", str(out))
    assert failed.code == 1
    assert "arm 0, seed 0 failed: " in failed.err
    monkeypatch.setenv("FEDQ_DATA_DIR", str(tmp_path / "data"))
    settings.cache_clear()
    assert fedq("run", str(file), "--output", str(out)).code == 0
    assert len(bits(out)["0-0"][0]) == 1


def test_components_in_a_folder_are_run(tmp_path: Path, fedq: Fedq) -> None:
    code = tmp_path / "code"
    code.mkdir()
    # A name of its own: another test of this process may have registered the example's.
    example = (EXAMPLES / "our_clipping" / "our_clipping.py").read_text()
    written = example.replace('"our_clipping"', '"clipping_of_a_folder"')
    assert written != example
    (code / "clipping_of_a_folder.py").write_text(written)
    document = merged(SYNTHETIC, {"aggregator": {"kind": "clipping_of_a_folder"}, "rounds": 2, "seeds": [0]})
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    assert fedq("run", str(file), "--output", str(out)).code == 2
    assert fedq("run", str(file), "--output", str(out), "--code", str(code)).code == 0
    (rows, digest) = bits(out)["0-0"]
    assert (len(rows), bool(digest)) == (2, True)
    # The code is in the results file, too, which a process that has not loaded it writes.
    read = "import sys; from pathlib import Path; from fedq.local.folder import archive;"
    read += "sys.stdout.buffer.write(archive(Path(sys.argv[1])))"
    content = json.loads(subprocess.check_output([sys.executable, "-c", read, str(out)]))
    assert b64decode(content["code"]) == pack(code)
    specification = content["experiment"]["specification"]
    assert specification["code"]["digest"] == bundle_digest(pack(code))
    assert specification["aggregator"]["kind"] == "clipping_of_a_folder"
    (code / "clipping_of_a_folder.py").write_text(written + "\n")
    changed = fedq("run", str(file), "--output", str(out), "--code", str(code))
    assert changed.code == 4
    assert "code.digest is " in changed.err


CRASHING = """
import ctypes
from typing import Literal
from fedq.extensions import Partition

class Crashing(Partition):
    kind: Literal["crashing"] = "crashing"

    def parts(self, labels, seed, keys):
        return ctypes.string_at(0)
"""


@pytest.mark.nightly
def test_a_crash_of_compiled_code_is_told_with_its_place(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "crashing.py").write_text(CRASHING)
    problem = {"partition": {"kind": "crashing", "clients": 2}}
    file = spec_file(tmp_path, merged(DIGITS, {"problem": problem, "rounds": 1, "seeds": [0]}))
    command = [sys.executable, "-m", "fedq.cli", "run", str(file), "--code", str(code)]
    ended = subprocess.run(
        [*command, "--output", str(tmp_path / "out")], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "Segmentation fault" in ended.stderr
    assert f'File "{code}/crashing.py", line 10 in parts' in ended.stderr
    assert "compiled code crashed there" in " ".join(ended.stderr.split())


def test_a_run_that_diverged_says_with_which_client_and_step(tmp_path: Path, fedq: Fedq) -> None:
    document = merged(QUADRATIC, {"local": {"lr": 400.0, "steps": 200}, "systems": {"steps": None}})
    file, out = spec_file(tmp_path, document), tmp_path / "out"
    ended = fedq("run", str(file), "--output", str(out), "--processes", "1")
    made = json.loads((out / "runs" / "0-0" / "run.json").read_bytes())["provenance"]
    assert made["divergence"].startswith("client ")
    assert made["divergence"].endswith("of round 1")
    assert f"1 of 1 run diverged; first: {made['divergence']}" in " ".join(ended.out.split())


def test_a_run_at_chance_level_says_so_here_and_where_it_is_imported(
    tmp_path: Path, fedq: Fedq, client: Client
) -> None:
    model = {"kind": "mlp", "hidden": [16]}
    document = merged(
        DIGITS, {"problem": {"model": model}, "local": {"lr": 1000.0}, "rounds": 2, "seeds": [0]}
    )
    out = tmp_path / "out"
    ended = fedq("run", str(spec_file(tmp_path, document)), "--output", str(out), "--processes", "1")
    assert ended.code == 0
    assert "1 of 1 run ended at chance level" in " ".join(ended.out.split())
    id = fedq("import", str(out)).out.strip()
    assert client.experiment(id).warning == "1 of 1 run ended at chance level"
