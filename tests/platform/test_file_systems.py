"""SQLite on a network file system is refused; where a file lies is read from the mounts."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedcore.errors import SettingsError
from fedcore.platform.file_systems import network_file_system
from fedcore.platform.store import open_database


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    mounts = [
        SimpleNamespace(mountpoint=str(place), fstype=kind)
        for place, kind in (
            (Path("/"), "ext4"),
            (home.resolve(), "nfs4"),
            (home.resolve() / "scratch disk", "xfs"),
            (home.resolve() / "twice", "xfs"),
            (home.resolve() / "twice", "lustre"),
        )
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    return home


def test_the_mount_nearest_to_a_file_counts_and_the_latest_at_its_point(home: Path) -> None:
    (home.parent / "link").symlink_to(home)
    assert network_file_system(home / "ann" / "fedq.db") == "nfs4"
    assert network_file_system(home.parent / "link" / "fedq.db") == "nfs4"
    assert network_file_system(home / "scratch disk" / "fedq.db") is None
    assert network_file_system(home / "twice" / "fedq.db") == "lustre"
    assert network_file_system(home.parent / "homeless" / "fedq.db") is None


def test_sqlite_is_refused_there_and_nowhere_else(home: Path) -> None:
    (home / "scratch disk").mkdir()
    with pytest.raises(SettingsError, match=r"home/fedq\.db is on a network file system \(nfs4\)"):
        open_database(f"sqlite:///{home / 'fedq.db'}").reading().__enter__()
    with open_database(f"sqlite:///{home / 'scratch disk' / 'fedq.db'}").reading():
        pass
    assert not (home / "fedq.db").exists()
