"""SQLite on a network file system is refused; where a file lies is read from the mounts."""

from pathlib import Path

import pytest

from fedcore.errors import SettingsError
from fedcore.platform import file_systems
from fedcore.platform.file_systems import network_file_system
from fedcore.platform.store import open_database

MOUNTS = r"""
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / {home} rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:27 / {home}/scratch\040disk rw shared:3 - xfs /dev/sdb rw
32 22 0:28 / {home}/twice rw - xfs /dev/sdc rw
33 22 0:29 / {home}/twice rw - lustre mds:/fs rw
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, mounts = tmp_path / "home", tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.strip().format(home=home.resolve()))
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    home.mkdir()
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
