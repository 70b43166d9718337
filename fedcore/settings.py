"""Settings of FedQ, read once from the environment and an optional `.env` file.

The library reads none: the service, its workers and the command line pass it what it needs.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, IPvAnyNetwork, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fedcore.block import QueueName
from fedcore.data.base import DATA_DIR
from fedcore.errors import SettingsError


def _split(value: object) -> object:
    return (
        tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
    )


Seconds = Annotated[float, Field(gt=0)]
Timeout = Annotated[float, Field(gt=0, le=1_000_000)]
"""Seconds that sockets and PostgreSQL store in milliseconds and 31 bits."""
RetentionDays = Annotated[float, Field(gt=0, le=10_000)]


class Settings(BaseSettings):
    """Settings, read from environment variables `FEDQ_<NAME>`. An empty one counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix="FEDQ_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    home: Path = Path(".fedq")
    """State of the embedded stack: database, broker socket, checkpoints, models, logs. The API checks
    uploads here, workers note which runs they hold, and `fedq run` at which rates it worked.
    """
    data_dir: Path = DATA_DIR
    """Folder of the data sets, in torchvision's layout (`MNIST/raw/...`), and of pretrained weights
    (`weights/`).
    """
    database_url: str | None = None
    """SQLAlchemy URL of the database (default: SQLite in `home`)."""
    broker_url: str | None = None
    """Celery broker URL (default: the Valkey of the embedded stack in `home`)."""
    storage_url: str | None = None
    """Storage of checkpoints, models and uploaded data sets: a folder or the URL of an object
    store, `s3://bucket/path` (default: a folder in `home`).
    """
    slice_seconds: Seconds = 2.0
    """Approximate interval at which a worker commits its completed rounds. After 20 of them, and 60 s at
    least, it returns its run to the queue if other runs of the same priority are waiting.
    """
    lease_seconds: Timeout = 10.0
    """Duration of a worker's lease on a run. A worker that does not renew it in time loses
    the run.
    """
    grace_seconds: Seconds = 30.0
    """Grace period after SIGTERM for finishing and committing the current round. Then the worker
    exits, and its run is reclaimed when the lease expires.
    """
    group_host: str | None = None
    """Name or address at which this machine listens for other workers, and they reach it, when several
    train one run (`execution.shards`). Default: its host name, or 127.0.0.1 with SQLite.
    """
    queues: Annotated[tuple[QueueName, ...], NoDecode, BeforeValidator(_split), Field(min_length=1)] = (
        "default",
    )
    """Queues that a worker serves, separated by commas."""
    device: str = "auto"
    """Device of a worker: `cpu`, `cuda`, `cuda:1`; `auto` uses a GPU if one is available."""
    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """Maximum estimated memory of the runs that a worker accepts (default: the memory of its
    machine, container or GPU, less 1 GiB).
    """
    models_allowed: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Import paths of models that workers may run, as patterns separated by commas:
    `mylab.models:*` (default: none).
    """
    code_confinement: Literal["auto", "bubblewrap", "limits"] = "auto"
    """Confinement of users' code bundles: `bubblewrap`; `limits`, resource limits only; `auto`,
    `bubblewrap` where it works and `limits` elsewhere. With `bubblewrap`, workers that cannot use it
    do not run bundles.
    """
    code_memory_bytes: Annotated[int, Field(ge=1)] = 4 << 30
    """Maximum memory of the processes of a code bundle, in bytes."""
    code_round_seconds: Timeout = 600.0
    """Maximum processor time for one round of a run with a code bundle, and for loading its data, time in
    which it sleeps included; by the clock, four times as long.
    """
    upload_max_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    """Maximum size in bytes of an uploaded data set, both as a file and unpacked."""
    retention_days: RetentionDays | None = None
    """Days after which experiments that have ended are deleted with their models, at most 10,000,
    unless they are starred (default: never).
    """
    archive_url: str | None = None
    """Storage to which their results and all their files are copied first: a folder or the URL of an
    object store (default: none, they are deleted without a copy).
    """
    audit_retention_days: RetentionDays | None = None
    """Days after which entries of the audit log are deleted, at most 10,000 (default: never)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of logged events."""
    rate_limit: Annotated[float, Field(ge=0)] = 200.0
    """Maximum sustained number of requests per second of an API key, five times as many at once; 0: no
    limit.
    """
    webhook_networks: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)] = ()
    """Private networks that webhooks may reach, over plain HTTP too, separated by commas:
    `127.0.0.0/8,10.1.2.0/24` (default: none).
    """
    url: str = "http://127.0.0.1:8642"
    """URL of the service for the client and the command line."""
    api_key: str | None = None
    """API key that the client sends as a bearer token."""
    commit: str | None = None
    """Git commit of the installation, recorded in provenance (default: the commit of the checkout,
    if any).
    """

    @property
    def datasets(self) -> Path:
        """The folder of data sets, resolved."""
        return self.data_dir.expanduser()

    @property
    def database(self) -> str:
        """The database URL, resolved."""
        return self.database_url or f"sqlite:///{self.home.absolute() / 'fedq.db'}"

    @property
    def seen_seconds(self) -> float:
        """Seconds since the last heartbeat after which a worker counts as absent."""
        return 3 * self.lease_seconds

    @property
    def storage(self) -> str:
        """The storage URL, resolved."""
        return self.storage_url or str(self.home.absolute() / "storage")

    @property
    def uploads(self) -> Path:
        """Folder of uploads while they are checked."""
        return self.home.absolute() / "uploads"

    @property
    def archive(self) -> str | None:
        """The URL of the archive; None if no experiment is archived."""
        return None if self.retention_days is None else self.archive_url

    @property
    def broker(self) -> str:
        """The broker URL, resolved."""
        return self.broker_url or f"redis+socket://{self.home.absolute() / 'run' / 'broker.sock'}"


@cache
def settings() -> Settings:
    """The settings of this process; raises SettingsError."""
    try:
        return Settings()
    except ValidationError as error:
        flaws = (
            f"FEDQ_{str(flaw['loc'][0]).upper()}: {flaw['msg']}, not {flaw['input']!r}"
            for flaw in error.errors()
        )
        raise SettingsError("\n".join(flaws)) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the file .env is not encoded in UTF-8: {error}") from error
