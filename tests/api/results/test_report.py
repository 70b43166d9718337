"""Reports: an experiment on one page that stands by itself."""

import base64
import csv
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from xml.etree import ElementTree as ET

import httpx
import pytest

from api.results.report import render
from fedcore.platform.access import Principal, Scope
from fedcore.platform.store import Database, Session
from fedcore.platform.store.leases import Claim
from fedcore.simulation.report import RoundReport
from fedcore.spec import yaml_documents
from fedq.results.presentation import side, verdict
from fedq.schemas import Claims
from tests.api.results import test_claims as claimed
from tests.builders.claims import claim, commit, end_runs, report
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS

NASTY = "<script>alert(1)</script> | **not bold** `x`"
PICTURE = re.compile(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)")


def history(held: Claim) -> list[RoundReport]:
    """Arm 1 ends with 0.8 + seed / 100, arm 0 with 0.7."""
    accuracy = 0.8 + held.seed / 100 if held.arm else 0.7 + held.seed / 50
    return [
        RoundReport(
            held.arm,
            held.seed,
            round,
            local_steps=1,
            bytes_up=1,
            bytes_down=1,
            seconds=0.1,
            test_accuracy=accuracy * round / 3,
        )
        for round in (1, 2, 3)
    ]


@pytest.fixture
def id(http: httpx.Client, rows: Database) -> str:
    made = submit_over_http(http, {**TWO_ARMS, "name": NASTY, "description": NASTY})
    end_runs(rows, history, 6)
    return str(made["id"])


def read(http: httpx.Client, id: str, form: str) -> httpx.Response:
    answer = http.get(f"/v1/experiments/{id}/report.{form}")
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("form", ["html", "md"])
def test_report_says_what_the_results_say_with_the_best_in_bold(
    http: httpx.Client, id: str, form: str
) -> None:
    text = read(http, id, form).text
    begins, ends = ("<strong>", "</strong>") if form == "html" else ("**", "**")
    assert text.count(f"{begins}81.00 ± 1.00{ends}") == 2
    assert f"{begins}72.00" not in text
    assert "72.00 ± 2.00" in text


def test_the_pictures_of_html_are_in_it(http: httpx.Client, id: str) -> None:
    (picture,) = PICTURE.findall(read(http, id, "html").text)
    assert ET.fromstring(base64.b64decode(picture)).tag.endswith("svg")


def test_the_pictures_of_markdown_are_files_beside_it(http: httpx.Client, id: str) -> None:
    """Viewers of Markdown, such as GitHub, drop data URIs."""
    text = read(http, id, "md").text
    assert re.findall(r"!\[.*?\]\((.*?)\)", text) == [f"{id}-test_accuracy.svg"]
    assert "data:" not in text


@pytest.mark.parametrize("form", ["html", "md"])
def test_nothing_is_loaded_from_elsewhere_or_run(http: httpx.Client, id: str, form: str) -> None:
    answer = read(http, id, form)
    outside_code = re.sub(r"````yaml.*?````", "", answer.text, flags=re.DOTALL)
    assert "<script" not in outside_code
    assert not re.findall(r"(?:src|href)=\"(?!data:)", outside_code)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]


def test_text_of_users_breaks_no_table_of_a_report(http: httpx.Client, id: str) -> None:
    lines = read(http, id, "md").text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table
    assert lines[0] == r"# &lt;script>alert(1)&lt;/script> \| **not bold** `x`"


def test_the_specification_in_it_can_be_submitted_again(http: httpx.Client, id: str) -> None:
    (specification,) = re.findall(r"````yaml\n(.*?)````", read(http, id, "md").text, re.DOTALL)
    again = http.post("/v1/experiments", content=specification, headers={"Content-Type": "application/yaml"})
    assert again.status_code == 201, again.text
    assert again.json()["specification"] == http.get(f"/v1/experiments/{id}").json()["specification"]


@pytest.mark.parametrize("ticks", [3, 4, 9])
def test_no_line_of_a_description_ends_the_specification(http: httpx.Client, ticks: int) -> None:
    """A fence of N backticks is closed by a line of N or more, indented by three spaces at most
    (CommonMark, Section 4.5).
    """
    made = submit_over_http(http, {**TINY, "description": f"code\n{'`' * ticks}\n<b>live</b>"})
    text = read(http, made["id"], "md").text
    fence, code = re.findall(r"^(`{4,})yaml\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE)[0]
    assert len(fence) > ticks
    assert yaml_documents.load(code)["description"] == f"code\n{'`' * ticks}\n<b>live</b>"


def test_names_load_no_picture_and_lead_nowhere(http: httpx.Client) -> None:
    made = submit_over_http(
        http, {**TINY, "name": "![x](http://127.0.0.1/x.png)", "description": "[here](javascript:alert(1))"}
    )
    lines = read(http, made["id"], "md").text.splitlines()
    assert lines[0] == r"# !\[x\](http://127.0.0.1/x.png)"
    assert lines[2] == r"\[here\](javascript:alert(1))"


def test_arms_are_no_formulas_in_spreadsheets(http: httpx.Client, rows: Database) -> None:
    arms = [{"name": '=HYPERLINK("http://127.0.0.1")', "local.lr": 0.1}, {"name": "-1+1", "local.lr": 0.2}]
    made = submit_over_http(http, {**TINY, "sweep": {"arms": arms}})
    end_runs(rows, history, 2)
    answer = http.get(f"/v1/experiments/{made['id']}/results", headers={"Accept": "text/csv"})
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert {line["name"] for line in found} == {'\'=HYPERLINK("http://127.0.0.1")', "'-1+1"}
    assert all(float(line["mean"]) >= 0 for line in found if line["figure"] == "best")


def test_an_experiment_that_has_not_begun_has_a_report_too(http: httpx.Client) -> None:
    text = read(http, str(submit_over_http(http, TWO_ARMS)["id"]), "html").text
    assert "queued" in text
    assert "0 of 3" in text


def test_report_is_of_one_moment(http: httpx.Client, rows: Database) -> None:
    """A round is committed whenever something has been read."""
    id = str(submit_over_http(http, TINY)["id"])
    held = commit(rows, claim(rows), [report(1, test_accuracy=0.1)])
    restless = cast("Database", _Restless(rows, held))
    text = render("html", Principal("key_1", "local", Scope.ADMIN), id, restless)
    assert "<td>1 of 3</td>" in text
    assert "10.00" in text
    assert "20.00" not in text


class _Restless:
    """A database in which a round is committed after each transaction that reads."""

    def __init__(self, rows: Database, held: Claim) -> None:
        self._rows, self._held = rows, held

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._rows.reading() as session:
            yield session
        done = self._held.done + 1
        self._held = commit(self._rows, self._held, [report(done, test_accuracy=0.1 * done)])


@pytest.mark.parametrize("form", ["html", "md"])
def test_verdicts_are_told_in_the_words_that_serve_everywhere(
    http: httpx.Client, rows: Database, form: str
) -> None:
    id = str(submit_over_http(http, {"preset": claimed.PRESET})["id"])
    end_runs(rows, claimed.nowhere, 3)
    text = re.sub(r"\\([\[\]])", r"\1", html.unescape(read(http, id, form).text))
    for made in Claims.model_validate(http.get(f"/v1/experiments/{id}/claims").json()).claims:
        assert made.says in text
        for words in (verdict(made), *map(side, made.comparisons)):
            assert words in text
