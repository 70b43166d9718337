"""Liveness and readiness, against real databases and brokers, there and away."""

from pathlib import Path

from fedcore.settings import Settings
from tests.builders.specifications import Document
from tests.support.asgi import application, calling

AWAY = "redis+socket:///nowhere/broker.sock"


def _readiness(home: Path, database_url: str, broker_url: str) -> tuple[int, Document]:
    with calling(
        application(Settings(_env_file=None, home=home, database_url=database_url, broker_url=broker_url))
    ) as http:
        assert http.get("/healthz").json()["status"] == "ok"
        answer = http.get("/readyz")
        return answer.status_code, answer.json()


def test_the_service_is_ready_when_database_and_broker_answer(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    status, readiness = _readiness(tmp_path, database_url, broker_url)
    assert (status, readiness["status"]) == (200, "ready")
    assert readiness["checks"] == {
        "database": {"ok": True, "detail": database_url.partition(":")[0]},
        "broker": {"ok": True, "detail": "redis"},
    }


def test_without_a_broker_it_serves_all_the_same(tmp_path: Path, sqlite_template: Path) -> None:
    status, readiness = _readiness(tmp_path, f"sqlite:///{sqlite_template}", AWAY)
    assert (status, readiness["status"]) == (200, "degraded")
    assert "nowhere" in readiness["checks"]["broker"]["detail"]


def test_without_a_database_it_is_not_ready(tmp_path: Path) -> None:
    status, readiness = _readiness(tmp_path, "postgresql://nobody@127.0.0.1:1/fedq", AWAY)
    assert (status, readiness["status"]) == (503, "unready")
    assert not readiness["checks"]["database"]["ok"]


def test_with_a_database_that_was_never_migrated_it_is_not_ready(tmp_path: Path) -> None:
    status, readiness = _readiness(tmp_path, f"sqlite:///{tmp_path / 'empty.db'}", AWAY)
    assert (status, readiness["status"]) == (503, "unready")
    assert "no such table" in readiness["checks"]["database"]["detail"]
