"""A Slurm cluster of one node on the loopback: munged, slurmctld and slurmd, all of this user."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.polling import eventually
from tests.support.processes import served

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
WHERE = "/usr/sbin:/usr/bin"
START_S = 60.0
GRACE_S = 60
"""Between the signal to a job of the partition `low` that one of `high` preempts, and its end."""
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=10
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=node Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4 PreemptMode=OFF
PartitionName=low Nodes=node MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace}
PartitionName=high Nodes=node MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> list[str]:
    """The programs that are not installed here."""
    return [program for program in PROGRAMS if shutil.which(program, path=WHERE) is None]


@dataclass(frozen=True)
class Slurm:
    """A running cluster; its commands need `environment`."""

    environment: dict[str, str]

    def jobs(self) -> list[str]:
        """States of the jobs that have not left the queue."""
        told = subprocess.run(
            ["/usr/bin/squeue", "--noheader", "--array", "--format=%i %T %r"],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return told.stdout.splitlines()


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """A cluster whose files are in `folder`; its path must be short, for it holds a socket."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    # A folder that munged trusts; it runs as whoever runs the tests.
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            user=getpass.getuser(),
            cpus=os.cpu_count(),
            grace=GRACE_S,
            controller=_free_port(),
            daemon=_free_port(),
        )
    )
    environment = {"SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:{WHERE}"}
    slurm = Slurm(environment)
    files = [
        f"--{name}={folder / file}"
        for name, file in (
            ("socket", "munge.sock"),
            ("key-file", key.name),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        )
    ]
    commands = {
        "munged": ["/usr/sbin/munged", "--foreground", "--force", *files],
        "slurmctld": ["/usr/sbin/slurmctld", "-D", "-i"],
        "slurmd": ["/usr/sbin/slurmd", "-D", "-N", "node"],
    }
    with ExitStack() as running:
        for name, command in commands.items():
            log = folder / f"{name}.out"
            running.enter_context(served(command, log, env=os.environ | environment))
            if name == "munged":
                eventually((folder / "munge.sock").exists, START_S)
        eventually(lambda: _idle(slurm), START_S)
        yield slurm


def _idle(slurm: Slurm) -> bool:
    told = subprocess.run(
        ["/usr/bin/sinfo", "--noheader", "--format=%T"],
        env=os.environ | slurm.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return told.stdout.split() == ["idle"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
