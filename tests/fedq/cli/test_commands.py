"""The commands that read, steer and fetch; and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from fedcore import presets
from fedcore.settings import settings
from fedq.client import Client
from tests.builders.claims import claim
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.fedq.cli.conftest import Fedq
from tests.support.service import Service


@pytest.fixture
def experiment(service: Service, client: Client) -> str:
    """The id of an experiment whose first run is done."""
    id = client.submit(TWO_ARMS).id
    carry_out(service.database, service.storage, 1)
    return id


def test_experiments_are_listed_and_one_is_shown_with_its_runs(
    fedq: Fedq, client: Client, experiment: str
) -> None:
    client.submit({**TINY, "name": "[bold]odd[/] name"})
    listed = fedq("list").out
    assert experiment in listed
    assert "[bold]odd[/] name" in listed
    shown = fedq("status", experiment).out
    assert [line.split()[0] for line in shown.splitlines() if "run_" in line] == [
        run.id for run in client.runs(experiment)
    ]
    assert "two arms: running, 3 of 18 rounds" in shown


def test_lists_are_filtered_and_limited(fedq: Fedq, client: Client, experiment: str) -> None:
    tiny = client.submit(TINY).id
    assert [item["id"] for item in json.loads(fedq("list", "--name", "two arms", "--json").out)] == [
        experiment
    ]
    assert [item["id"] for item in json.loads(fedq("list", "--search", "ARMS", "--json").out)] == [experiment]
    assert [item["id"] for item in json.loads(fedq("list", "--limit", "1", "--json").out)] == [tiny]
    assert [item["id"] for item in json.loads(fedq("list", "--status", "queued", "--json").out)] == [tiny]
    shown = json.loads(fedq("status", experiment, "--json").out)
    assert shown["id"] == experiment
    assert [run["id"] for run in shown["runs"]] == [run.id for run in client.runs(experiment)]


def test_an_experiment_is_steered(fedq: Fedq, client: Client) -> None:
    id = client.submit(TINY).id
    for command, status in (
        ("pause", "paused"),
        ("resume", "queued"),
        ("cancel", "cancelled"),
        ("retry", "queued"),
    ):
        assert fedq(command, id) == (0, f"{id} {status}\n", "")
        assert json.loads(fedq(command, id, "--json").out or "{}")["status"] == status
    told = fedq("delete", "@last")
    assert (told.code, told.out) == (2, "")
    assert id in told.err
    assert "runs: 1 queued; 0 rounds" in " ".join(told.err.split())
    assert "confirm with --yes" in told.err
    assert fedq("delete", "@last", "--yes") == (0, f"deleted {id} 'tiny' with 1 run\n", "")
    assert fedq("status", id).code == 4


def test_runs_that_a_worker_has_stop_later(fedq: Fedq, service: Service, client: Client) -> None:
    id = client.submit(TWO_ARMS).id
    claim(service.database)
    refused = fedq("delete", id, "--yes")
    assert (refused.code, "has 1 running run: `fedq cancel" in refused.err) == (4, True)
    assert fedq("cancel", id).out == f"{id} running; runs stopping at the next round boundary: 1\n"
    assert fedq("delete", id, "--yes", "--force").code == 0


def test_experiments_and_arms_are_listed_compared_and_opened(
    fedq: Fedq, service: Service, experiment: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = client.submit(TINY).id
    assert [item["id"] for item in json.loads(fedq("list", "--json").out)] == [tiny, experiment]
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert fedq("open", "two arms").out == f"{service.url}/experiments/{experiment}\n"
    assert opened == [f"{service.url}/experiments/{experiment}"]

    found = fedq("arms", "two arms", "--sort", "local.lr").out.split()
    assert found[:6] == ["arm", "name", "status", "local.lr", "best", "suboptimality"]
    assert [word for word in found if ":" in word] == [f"{experiment}:1", f"{experiment}:0"]
    final = client.arms(experiments=[experiment]).lines[0]["suboptimality.final"]
    assert f"{final:.6g}" in found
    assert len(json.loads(fedq("arms", "--limit", "1", "--json").out)) == 1
    chosen = json.loads(fedq("arms", "--filter", "local.lr < 0.1", "--fields", "local.lr", "--json").out)
    assert [line["local.lr"] for line in chosen] == [0.05]

    told = json.loads(fedq("diff", f"{experiment}:0", "two arms:lr=0.05", "--json").out)
    assert told["differences"] == [{"path": "local.lr", "a": 0.1, "b": 0.05}]
    assert "two arms" in fedq("diff", experiment, tiny).out
    assert fedq("diff", tiny, "@last").out == f"{tiny} and {tiny} have the same specification\n"
    assert fedq("diff", tiny, f"{experiment}:7").code == 2


def test_logs_are_in_the_order_of_time_and_of_one_experiment(
    fedq: Fedq, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path))
    settings.cache_clear()
    assert fedq("logs").code == 4
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "api.log").write_text(
        json.dumps({"time": "2026-01-01T00:00:02Z", "process": "api", "event": "submitted", "id": experiment})
        + "\nplain text\nincomplete"
    )
    (tmp_path / "logs" / "worker-1.log").write_text('{"time": "2026-01-01T00:00:01Z", "event": "ready"}\n')
    assert fedq("logs").out.splitlines() == [
        "2026-01-01T00:00:01Z ready",
        f"2026-01-01T00:00:02Z api submitted id={experiment}",
        "2026-01-01T00:00:02Z api plain text",
    ]
    assert fedq("logs", "two arms").out.count("\n") == 1
    assert fedq("logs", "-n", "0").out == ""
    assert [json.loads(line)["event"] for line in fedq("logs", "-n", "1", "--json").out.splitlines()] == [
        "plain text"
    ]


def test_watching_tells_events_as_lines_of_json_and_ends_with_the_experiment(
    fedq: Fedq, service: Service, client: Client
) -> None:
    id = client.submit(TINY).id
    carry_out(service.database, service.storage, 1)
    ended = fedq("watch", id, "--json")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["round"] for event in events if "round" in event] == [1, 2, 3]
    assert (ended.code, events[-1]["status"]) == (0, "succeeded")
    assert fedq("watch", id) == (
        0,
        f"{id} succeeded\n",
        "fedavg, seed 0: succeeded after 3 rounds, suboptimality " + _last(ended.out) + "\n",
    )


def test_watching_a_cancelled_experiment_is_unsuccessful(fedq: Fedq, client: Client) -> None:
    id = client.submit(TINY).id
    client.cancel(id)
    assert fedq("watch", id).code == 1


def test_results_come_as_table_json_and_csv(fedq: Fedq, experiment: str) -> None:
    table = fedq("results", experiment, "--metric", "distance").out
    assert "distance, mean ± std over 1 seed" in table
    assert "2 queued" in table
    assert json.loads(fedq("results", experiment, "--json").out)["experiment_id"] == experiment
    assert fedq("results", experiment, "--format", "csv").out.startswith(
        "arm,name,metric,figure,n,mean,std,low,high,"
    )
    ended = fedq("results", experiment, "--metric", "colour")
    assert ended.code == 2
    assert "must be one of 'distance'," in ended.err
    assert "did you mean 'distance'?" in fedq("results", experiment, "--metric", "distanze").err


def test_arms_are_compared_as_table_and_json_and_drawn(fedq: Fedq, experiment: str, tmp_path: Path) -> None:
    table = fedq(
        "compare",
        f"{experiment}:1",
        f"{experiment}:0",
        "--metric",
        "distance",
        "--figure",
        str(tmp_path / "both.svg"),
    )
    assert table.code == 0
    for words in (
        "distance, mean ± std over",
        "final - best other",
        "All arms are compared, seed by seed.",
        str(tmp_path / "both.svg"),
    ):
        assert words in table.out
    assert (tmp_path / "both.svg").read_text().count("<!-- lr=0.1 -->") == 1
    document = json.loads(fedq("compare", experiment, "--json", "--baseline", "1").out)
    assert (document["best_arms"]["baseline"], [member["arm"] for member in document["members"]]) == (
        1,
        [0, 1],
    )
    assert fedq("compare", "exp_none").code == 4
    assert fedq("compare", experiment, "--figure", "both.jpg").code == 2


def test_a_comparison_is_drawn_as_wide_and_in_such_letters_as_told(
    fedq: Fedq, experiment: str, tmp_path: Path
) -> None:
    told = ("--width", "single", "--font", "serif", "--markers", "--title", "", "--ylim", "0.1:10")
    picture = tmp_path / "both.svg"
    assert fedq("compare", experiment, "--figure", str(picture), *told).code == 0
    # A column of a paper, 89 mm, in pt.
    assert re.search(r'<svg[^>]* width="252.28\d*pt"', picture.read_text())
    assert "STIX" in picture.read_text()
    alone = fedq("compare", experiment, *told)
    assert (alone.code, "--figure" in alone.err) == (2, True)


def test_pictures_and_models_are_written_where_told(
    fedq: Fedq, client: Client, experiment: str, tmp_path: Path
) -> None:
    picture, model = tmp_path / "curve.png", tmp_path / "model.safetensors"
    assert fedq("figure", experiment, "--output", str(picture), "--x", "bytes") == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    paper = tmp_path / "paper.pdf"
    look = (
        "--width",
        "single",
        "--font",
        "serif",
        "--size",
        "7",
        "--arm",
        "0",
        "--markers",
        "--title",
        "",
        "--log",
        "none",
        "--xlim",
        "0:",
    )
    assert fedq("figure", experiment, "--output", str(paper), *look).code == 0
    assert paper.read_bytes().startswith(b"%PDF")
    assert "\n  width: must be" in fedq("figure", experiment, "--width", "wide").err
    timeless = fedq("figure", experiment, "--output", str(picture), "--x", "time")
    assert timeless.code == 4
    assert "has a simulated clock" in timeless.err
    done, waiting, *_ = client.runs(experiment)
    assert fedq("export", done.id, "--output", str(model)) == (0, f"{model}\n", "")
    assert model.stat().st_size > 0
    best = tmp_path / "best.safetensors"
    assert fedq("export", done.id, "--best", "--output", str(best)) == (0, f"{best}\n", "")
    assert best.read_bytes() == client.model(done.id, which="best")
    assert fedq("export", waiting.id, "--output", str(model)).code == 4
    assert fedq("figure", experiment, "--output", "curve.jpg").code == 2


def test_presets_can_be_listed_and_printed_to_be_changed(fedq: Fedq) -> None:
    assert "demo" in fedq("presets").out
    assert [preset["name"] for preset in json.loads(fedq("presets", "--json").out)] == presets.names()
    assert (
        yaml.safe_load(fedq("presets", "demo").out)
        == json.loads(fedq("presets", "demo", "--json").out)["specification"]
    )
    assert fedq("presets", "demos").code == 4


def test_the_catalogue_shows_blocks_and_kinds(fedq: Fedq) -> None:
    assert "problem.dataset" in fedq("catalogue").out
    assert "mu=0.01" in fedq("catalogue", "algorithm").out
    assert {kind["kind"] for kind in json.loads(fedq("catalogue", "algorithm", "--json").out)["kinds"]} >= {
        "fedavg",
        "scaffold",
    }
    assert "json_schema" in json.loads(fedq("catalogue", "--json").out)
    ended = fedq("catalogue", "algorithms")
    assert ended.code == 2
    assert "did you mean 'algorithm'?" in " ".join(ended.err.split())


HTTP = re.compile(r"\b(GET|POST|PATCH|PUT|DELETE) |/v1/|\?\w+:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "nothing"],
        ["submit", "--preset", "demos"],
        ["submit", "--preset", "demo", "--set", "problem.dataset={kind: uploaded}"],
        ["submit", "--preset", "demo", "--set", "problem.dataset={kind: uploaded, id: set_1}"],
        ["submit", "--preset", "demo", "--set", "sweep.problem={dataset: {kind: uploaded}}"],
        ["submit", "--preset", "demo", "--set", f"code={{digest: 'sha256:{'0' * 64}'}}"],
        ["results", "EXPERIMENT", "--baseline", "arm 9"],
        ["results", "EXPERIMENT", "--target", "test_acuracy:0.9"],
        ["figure", "EXPERIMENT", "--metric", "colour"],
        ["figure", "EXPERIMENT", "--arm", "arm 9"],
        ["figure", "EXPERIMENT", "--width", "wide"],
        ["compare", "EXPERIMENT:9"],
        ["arms", "--filter", "local.lr =="],
        ["arms", "--sort", "colour"],
        ["arms", "--fields", "colour"],
        ["arms", "nothing"],
        ["reproduce", "EXPERIMENT", "--check"],
        ["search", "EXPERIMENT"],
        ["extend", "EXPERIMENT", "--rounds", "1"],
        ["data", "show", "set_1"],
        ["webhook", "show", "whk_1"],
        ["logs", "run_1"],
    ],
    ids=" ".join,
)
def test_messages_are_about_commands_and_not_about_http(
    fedq: Fedq, experiment: str, arguments: list[str]
) -> None:
    told = fedq(*(word.replace("EXPERIMENT", experiment) for word in arguments))
    assert told.code != 0
    assert told.err
    assert not HTTP.search(told.err), told.err


def test_queues_and_workers_are_shown(fedq: Fedq, experiment: str) -> None:
    assert "default" in fedq("queue").out
    assert [queue["queued"] for queue in json.loads(fedq("queue", "--json").out)] == [5]
    assert fedq("workers").code == 0
    assert json.loads(fedq("workers", "--json").out) == []


def test_a_service_that_is_not_there_has_an_exit_code_of_its_own(
    fedq: Fedq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDQ_URL", "http://:port")
    settings.cache_clear()
    ended = fedq("list")
    assert ended.code == 3
    assert "http://:port" in ended.err


def test_a_bad_setting_is_named(fedq: Fedq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQ_SLICE_SECONDS", "short")
    settings.cache_clear()
    ended = fedq("list")
    assert ended.code == 2
    assert "FEDQ_SLICE_SECONDS: Input should be a valid number" in ended.err


def test_help_tells_the_exit_codes(fedq: Fedq) -> None:
    told = " ".join(fedq("--help").out.split())
    assert "Exit codes" in told
    assert "130 interrupted" in told


@pytest.mark.slow
def test_ctrl_c_leaves_the_experiment_and_says_so(service: Service, client: Client, experiment: str) -> None:
    with _watching(service, experiment) as process:
        assert process.stderr is not None
        assert "seed 0: succeeded" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, "keeps running" in told) == (130, True)
    assert client.experiment(experiment).status == "running"


@contextmanager
def _watching(service: Service, experiment: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {
        "FEDQ_URL": service.url,
        "FEDQ_API_KEY": service.key,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "fedq.cli", "watch", experiment]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def _last(events: str) -> str:
    """The last suboptimality, as progress shows it."""
    rows = [json.loads(line) for line in events.splitlines()]
    return f"{[row['extra']['suboptimality'] for row in rows if 'extra' in row][-1]:.4g}"
