"""Settings: values that make no sense are refused, with the name of the setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.errors import SettingsError
from fedcore.settings import settings


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


@pytest.mark.parametrize("name", ["AUDIT_RETENTION_DAYS", "WEBHOOK_RETENTION_DAYS"])
@pytest.mark.parametrize("days", ["36500", "800000", "inf", "nan", "0"])
def test_a_retention_that_reaches_back_too_far_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, days: str
) -> None:
    monkeypatch.setenv(f"FEDQ_{name}", "10000")
    assert getattr(settings(), name.lower()) == 10_000
    settings.cache_clear()
    monkeypatch.setenv(f"FEDQ_{name}", days)
    with pytest.raises(SettingsError, match=rf"^FEDQ_{name}: Input should be .*, not '{days}'$"):
        settings()


@pytest.mark.parametrize("name", ["LEASE_SECONDS", "WEBHOOK_TIMEOUT_SECONDS"])
def test_a_timeout_that_sockets_and_databases_cannot_count_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"FEDQ_{name}", "3e6")
    with pytest.raises(
        SettingsError, match=f"^FEDQ_{name}: Input should be less than or equal to 1000000, not '3e6'$"
    ):
        settings()
