"""File systems that several machines share, on which SQLite loses data: its locks and its shared
memory work on one machine only (https://sqlite.org/wal.html, https://sqlite.org/faq.html#q5).
"""

from pathlib import Path

from fedcore.errors import SettingsError

NETWORK = frozenset(
    {
        *("afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.gcsfuse", "fuse.juicefs", "fuse.rclone"),
        *("fuse.s3fs", "fuse.sshfs"),
    }
)
"""Types of file systems, as Linux names them. Not `9p` and `virtiofs`, by which a virtual machine
has the folders of its host.
"""


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that holds `path`, which need not exist.

    None if it is on a disk of this machine, or where the system does not say.
    """
    import psutil  # imported here: PostgreSQL needs none of it

    try:
        # Of two mounts at the same point, the later one is seen.
        mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    except OSError:
        return None
    place = path.resolve()
    found = next((mounts[folder] for folder in (place, *place.parents) if folder in mounts), "")
    return found if found in NETWORK else None


def refuse_network_file_system(file: Path) -> None:
    """Raise SettingsError if the database file is on a network file system."""
    if (kind := network_file_system(file)) is not None:
        raise SettingsError(
            f"FEDQ_DATABASE_URL: {file} is on a network file system ({kind}), on which SQLite loses data; set"
            " FEDQ_HOME to a folder on a local disk, or FEDQ_DATABASE_URL to a PostgreSQL database"
        )
