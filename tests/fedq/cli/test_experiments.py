"""`fedq submit`."""

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from fedcore.spec import yaml_documents
from fedq.cli import views
from fedq.cli.experiments import overrides
from fedq.client import Client
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.fedq.cli.conftest import Fedq
from tests.support.access import key_for
from tests.support.service import Service


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A specification file of two arms with three seeds."""
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(TWO_ARMS))
    return str(file)


@pytest.fixture
def finished(service: Service, client: Client) -> str:
    """The key under which that specification was submitted; its runs are done."""
    client.submit(TWO_ARMS, idempotency_key="finished")
    carry_out(service.database, service.storage, 6)
    return "finished"


def test_the_id_is_all_that_goes_to_stdout(fedq: Fedq, client: Client, spec: str) -> None:
    ended = fedq("submit", spec)
    assert (ended.code, ended.out.split()) == (0, [experiment.id for experiment in client.experiments()])


def test_a_preset_is_submitted_with_changes(fedq: Fedq, client: Client) -> None:
    ended = fedq(
        "submit",
        "--preset",
        "demo",
        "--set",
        "rounds=2",
        "--set",
        "sweep={algorithm.kind: [fedavg]}",
        "--set",
        "sweep.algorithm=",
    )
    assert ended.code == 0, ended.err
    experiment = client.experiment(ended.out.strip())
    assert (experiment.progress.rounds_total, experiment.provenance["preset"]) == (6, "demo")


def test_a_specification_is_read_from_standard_input(fedq: Fedq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(TINY)))
    assert json.loads(fedq("submit", "-", "--json").out)["name"] == "tiny"


def test_errors_in_a_bundle_have_no_line_of_the_specification(
    fedq: Fedq, service: Service, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "mine.py").write_text("VALUE = 1\nclass Half(:")
    monkeypatch.setenv("FEDQ_API_KEY", key_for(str(service.database.url), code=True))
    ended = fedq("submit", spec, "--code", str(tmp_path / "lab"))
    assert ended.code == 2
    assert "  code: SyntaxError: invalid syntax (mine.py, line 2)\n" in ended.err


def test_a_plan_by_the_service_prints_the_arms_and_stores_nothing(
    fedq: Fedq, client: Client, spec: str
) -> None:
    ended = fedq("plan", spec, "--service")
    assert "6 runs, 18 rounds" in ended.out
    assert [line.split()[0] for line in ended.out.splitlines() if "lr=" in line] == ["lr=0.1", "lr=0.05"]
    assert json.loads(fedq("plan", spec, "--service", "--json").out)["runs"] == 6
    assert list(client.experiments()) == []


def test_a_plan_is_shown_with_what_is_sent_in_each_direction(client: Client) -> None:
    plan = client.dry_run(TINY)
    sizes = {"bytes_up": 1_000_000, "bytes_down": 2_000_000, "memory_bytes": 3_000_000}
    console = Console(record=True, width=200)
    console.print(views.plan(plan.model_copy(update={"arms": [plan.arms[0].model_copy(update=sizes)]})))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    (head,) = (line for line in lines if "MB up" in line)
    (row,) = (line for line in lines if line.endswith(" 3.0"))
    assert head.endswith("MB up  MB down  memory, MB")
    assert row.split()[-3:] == ["1.0", "2.0", "3.0"]


def test_waiting_prints_the_results_and_the_progress_apart(fedq: Fedq, spec: str, finished: str) -> None:
    ended = fedq("submit", spec, "--wait", "--idempotency-key", finished)
    assert ended.code == 0
    assert "lr=0.05, seed 2: succeeded after 3 rounds" in ended.err
    assert "suboptimality, mean ± std over 3 seeds" in ended.out
    assert "succeeded" not in ended.out


@pytest.mark.parametrize(
    ("suffix", "read"), [(".csv", pl.read_csv), (".parquet", pl.read_parquet), (".json", None)]
)
def test_results_are_written_as_the_suffix_says(
    fedq: Fedq, spec: str, finished: str, tmp_path: Path, suffix: str, read: object
) -> None:
    output = tmp_path / f"results{suffix}"
    ended = fedq("submit", spec, "--output", str(output), "--idempotency-key", finished, "--json")
    results = json.loads(ended.out)
    if callable(read):
        assert {*read(output)["name"]} == {arm["name"] for arm in results["arms"]}
    else:
        assert json.loads(output.read_text()) == results


def test_an_experiment_that_is_cancelled_meanwhile_is_unsuccessful(
    fedq: Fedq, client: Client, spec: str
) -> None:
    id = client.submit(TWO_ARMS, idempotency_key="cancelled").id
    client.cancel(id)
    ended = fedq("submit", spec, "--wait", "--idempotency-key", "cancelled")
    assert (ended.code, ended.err.splitlines()[-1]) == (1, f"fedq: {id} cancelled")


def test_a_refusal_names_every_field_and_what_would_be_right(fedq: Fedq, spec: str) -> None:
    ended = fedq(
        "submit", spec, "--set", "local.lr=-1", "--set", "algorithm.kind=fedawg", "--set", "raunds=3"
    )
    assert (ended.code, ended.out) == (2, "")
    assert "/local/lr: Input should be greater than 0, not -1" in ended.err
    assert "not 'fedawg'; did you mean 'fedavg'?" in ended.err
    assert "/raunds: unknown field; did you mean rounds?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give either a specification file or --preset"),
        (["a.yaml", "--preset", "demo"], "give either a specification file or --preset"),
        (["a.yaml"], "a.yaml cannot be read"),
        (["--preset", "demos"], "there is no preset 'demos'; the nearest are demo, "),
        (["--preset", "demo", "--set", "rounds"], "'rounds' is not of the form path=value"),
        (["--preset", "demo", "--set", "rounds={"], "is not valid YAML"),
        (["--preset", "demo", "--set", "local=1", "--set", "local.lr=1"], "local already has a value"),
        (
            ["--preset", "demo", "--output", "results.xls"],
            "the file name must end in .json, .csv, .parquet, not results.xls",
        ),
        (["--preset", "demo", "--colour"], "No such option"),
    ],
)
def test_invalid_submit_commands_are_refused(
    fedq: Fedq, client: Client, arguments: list[str], told: str
) -> None:
    ended = fedq("submit", *arguments)
    assert ended.code == 2
    assert told in ended.err
    assert list(client.experiments()) == []


def test_faults_of_a_specification_file_are_told_with_their_line(fedq: Fedq, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml_documents.dump(TINY | {"rounds": -1, "colour": "red"}))
    lines = file.read_text().splitlines()
    for command in (("submit",), ("plan", "--service")):
        ended = fedq(*command, str(file))
        assert ended.code == 2
        for pointer, start in (("/rounds", "rounds: -1"), ("/colour", "colour: red")):
            assert f"{pointer} (line {lines.index(start) + 1}): " in ended.err
    # Of what stands on the command line no line of the file is to blame.
    assert "(line" not in fedq("submit", str(file), "--set", "rounds=0").err
    refused = fedq("submit", str(file), "--idempotency-key", "k" * 1_000).err
    assert "Idempotency-Key: " in refused
    assert "(line" not in refused


# Arguments of `--set`, and the values that they stand for.


@pytest.mark.parametrize(
    ("assignments", "document"),
    [
        ([], {}),
        (["rounds=3", "local.lr=0.1", "local.epochs=2"], {"rounds": 3, "local": {"lr": 0.1, "epochs": 2}}),
        (
            ["seeds=[0, 1]", "algorithm={kind: fedprox, mu: 1}"],
            {"seeds": [0, 1], "algorithm": {"kind": "fedprox", "mu": 1}},
        ),
        (["sweep.local.lr=[0.1, 0.2]"], {"sweep": {"local.lr": [0.1, 0.2]}}),
        (["sweep=null", "name=a=b"], {"sweep": None, "name": "a=b"}),
        (["rounds=3", "rounds=4"], {"rounds": 4}),
    ],
)
def test_paths_are_dotted_and_values_are_yaml(assignments: list[str], document: dict[str, Any]) -> None:
    assert overrides(assignments) == document
