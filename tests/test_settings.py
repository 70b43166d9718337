"""Settings: values that make no sense are refused, with the name of the setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedcore.errors import SettingsError
from fedcore.settings import Settings, settings
from tests.builders.specifications import QUADRATIC, specification


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_a_file_env_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes("FEDQ_HOME=caf\u00e9".encode("latin-1"))
    with pytest.raises(SettingsError, match=r"^the file \.env is not encoded in UTF-8"):
        settings()


@pytest.mark.parametrize("days", ["36500", "800000", "inf", "nan", "0"])
def test_a_retention_that_reaches_back_too_far_is_refused(monkeypatch: pytest.MonkeyPatch, days: str) -> None:
    monkeypatch.setenv("FEDQ_AUDIT_RETENTION_DAYS", "10000")
    assert settings().audit_retention_days == 10_000
    settings.cache_clear()
    monkeypatch.setenv("FEDQ_AUDIT_RETENTION_DAYS", days)
    with pytest.raises(
        SettingsError, match=rf"^FEDQ_AUDIT_RETENTION_DAYS: Input should be .*, not '{days}'$"
    ):
        settings()


@pytest.mark.parametrize("name", ["LEASE_SECONDS", "CODE_ROUND_SECONDS"])
def test_a_timeout_that_sockets_and_databases_cannot_count_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"FEDQ_{name}", "3e6")
    with pytest.raises(
        SettingsError, match=f"^FEDQ_{name}: Input should be less than or equal to 1000000, not '3e6'$"
    ):
        settings()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_an_empty_value_counts_as_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    default = Settings.model_fields[name].default
    monkeypatch.setenv(f"FEDQ_{name.upper()}", "")
    assert getattr(settings(), name) == default
    settings.cache_clear()
    monkeypatch.delenv(f"FEDQ_{name.upper()}")
    (tmp_path / ".env").write_text(f"FEDQ_{name.upper()}=\n")
    assert getattr(settings(), name) == default


@pytest.mark.parametrize("queue", ["A", "-a", "a b", "é", "a" * 65, "a_9-z", "0", "a" * 64])
def test_a_worker_serves_the_queues_that_specifications_can_name(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    monkeypatch.setenv("FEDQ_QUEUES", f"default, {queue}")
    try:
        specification(QUADRATIC, execution={"queue": queue})
    except ValidationError:
        with pytest.raises(SettingsError, match=r"^FEDQ_QUEUES: String should match pattern .*, not "):
            settings()
    else:
        assert settings().queues == ("default", queue)
