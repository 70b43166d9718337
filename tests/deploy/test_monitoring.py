"""Every metric of the dashboard and of the alerts exists at /metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.app import create_app
from fedcore.platform.store import Database, workers
from fedcore.settings import Settings
from tests.builders.claims import claim, commit
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY
from tests.deploy.conftest import ROOT
from tests.support.access import key_for
from tests.support.asgi import calling

METRIC = re.compile(r"\b((?:fedq|process)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on) \(([^)]*)\)")
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds itself."""


@pytest.fixture
def told(database: Database, database_url: str, tmp_path: Path) -> dict[str, set[str]]:
    """The names of what a service in use tells, each with its labels."""
    with calling(
        create_app(Settings(_env_file=None, home=tmp_path, database_url=database_url)), key_for(database_url)
    ) as http:
        submit_over_http(http, {**TINY, "seeds": [0, 1]})
        commit(database, claim(database))
        with database.transaction() as session:
            workers.seen(session, "w1", host="here", pid=7, queues=["default"], device="cpu", run_id=None)
        families = text_string_to_metric_families(http.get("/metrics").text)
        return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def _dashboard() -> Any:
    return json.loads((ROOT / "deploy/grafana/dashboards/fedq.json").read_text())


def _expressions() -> Iterator[str]:
    for panel in _dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for group in yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_metric_that_is_asked_for_is_told_with_the_labels_asked_for(told: dict[str, set[str]]) -> None:
    asked = set()
    for expression in _expressions():
        names = set()
        for name, selected in METRIC.findall(expression):
            assert set(re.findall(r"(\w+)=", selected)) <= told[name] | SCRAPED, expression
            names |= told[name]
            asked.add(name)
        for grouped in GROUPED.findall(expression):
            assert {label.strip() for label in grouped.split(",")} <= names, expression
    ours = {
        name for name in told if name.startswith("fedq_") and not name.endswith(("_bucket", "_sum", "_count"))
    }
    assert ours - asked == {"fedq_info"}, "told, and nowhere to be seen"


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = _dashboard()["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_mounted_files_are_there_and_scraped_targets_are_services(services: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        for volume in services[name]["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists()
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert port in services[name]["command"]
    provisioned = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    assert {panel["datasource"]["uid"] for panel in _dashboard()["panels"]} == {
        provisioned["datasources"][0]["uid"]
    }


def test_nobody_outside_this_machine_reaches_what_asks_for_no_password(services: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in services["grafana"]["ports"])
    assert "ports" not in services["prometheus"]
