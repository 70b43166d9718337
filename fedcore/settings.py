"""Settings of FedQ, read once from the environment and an optional `.env` file.

The library reads some of them, too: the folders of data sets and machine code, and allowed models.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, IPvAnyNetwork, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fedcore.block import QueueName
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
    """State of the embedded stack: database, broker socket, checkpoints, models, logs. Workers note
    here which runs they hold, and `fedq run` at which rates it worked.
    """
    data_dir: Path = Path("~/.cache/fedq/data")
    """Folder of the data sets, in torchvision's layout (`MNIST/raw/...`), and of pretrained weights
    (`weights/`).
    """
    machine_code_dir: Path = Path("~/.cache/fedq/machine-code")
    """Folder of the machine code of dense networks. If it is not writable, each process compiles its
    own.
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
    """Approximate interval at which a worker commits its completed rounds."""
    lease_seconds: Timeout = 10.0
    """Duration of a worker's lease on a run. A worker that does not renew it in time loses
    the run.
    """
    grace_seconds: Seconds = 30.0
    """Grace period after SIGTERM for finishing and committing the current round. Then the worker
    exits, and its run is reclaimed when the lease expires.
    """
    turn_seconds: Seconds = 60.0
    """Time after which a worker returns its run to the queue if other runs of the same priority are
    waiting.
    """
    gang_size: Annotated[int, Field(ge=1)] = 8
    """Maximum number of runs of one experiment trained together, where that is faster than training
    them in sequence.
    """
    group_host: str | None = None
    """Name or address at which this machine listens for other workers, and they reach it, when several
    train one run (`execution.shards`). Default: its host name, or 127.0.0.1 with SQLite.
    """
    client_memory_bytes: Annotated[int, Field(ge=0)] = 2 << 30
    """Maximum size in bytes of the state that a run's clients keep in memory between rounds. The
    rest is kept in a temporary file.
    """
    client_dir: Path | None = None
    """Folder of that file (default: the system's folder for temporary files)."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """Maximum number of consecutive attempts without a completed round. Then the run fails."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Approximate delay before a failed run is retried. It doubles with each attempt until a round
    is completed, up to 300 s.
    """
    retry_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Time for which a worker retries while the database or the storage is unavailable or full,
    before it releases the run.
    """
    queues: Annotated[tuple[QueueName, ...], NoDecode, BeforeValidator(_split), Field(min_length=1)] = (
        "default",
    )
    """Queues that a worker serves, separated by commas."""
    device: str = "auto"
    """Device of a worker: `cpu`, `cuda`, `cuda:1`; `auto` uses a GPU if one is available."""
    workers_per_gpu: Annotated[int, Field(ge=1)] = 1
    """Number of workers that `fedq up` starts on each GPU. They share its memory equally."""
    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """Maximum estimated memory of the runs that a worker accepts (default: the memory of its
    machine, container or GPU, less 1 GiB).
    """
    torch_threads: Annotated[int, Field(ge=1)] = 1
    """Threads of the tensor library in each worker. One worker per core is faster than one worker
    on all cores.
    """
    redis_bin: Path | None = None
    """The redis-server or valkey-server of the embedded stack (default: that of the wheel, or the
    one on PATH).
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
    upload_max_samples: Annotated[int, Field(ge=1)] = 10_000_000
    """Maximum number of samples of an uploaded data set."""
    upload_max_features: Annotated[int, Field(ge=1)] = 1_000_000
    """Maximum number of values in each sample of an uploaded data set."""
    upload_dir: Path | None = None
    """Folder of uploads while they are validated (default: the system's folder for temporary
    files).
    """
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
    log_format: Literal["auto", "json", "text"] = "auto"
    """Log format: `json`, one object per line; `text`, human-readable; `auto`, `text` on a terminal
    and `json` elsewhere.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of logged events."""
    json_max_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """Maximum size of a JSON request body in bytes."""
    yaml_max_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    """Maximum size of a YAML request body in bytes. YAML is about fifty times slower to parse than
    JSON.
    """
    max_runs: Annotated[int, Field(ge=1)] = 10_000
    """Maximum number of runs (arms times seeds) of an experiment; at most 10,000."""
    max_rounds: Annotated[int, Field(ge=1)] = 1_000_000
    """Maximum number of rounds of a run; at most 1,000,000."""
    max_parameters: Annotated[int, Field(ge=1)] = 1_000_000_000
    """Maximum number of parameters of a model; at most 1,000,000,000."""
    rate_limit: Annotated[float, Field(ge=0)] = 200.0
    """Maximum sustained number of requests per second of an API key; 0: no limit."""
    rate_burst: Annotated[int, Field(ge=1)] = 1_000
    """Maximum burst of requests of an API key."""
    streams_max: Annotated[int, Field(ge=0)] = 500
    """Maximum number of open event streams of an API key in each API process; 0: no limit."""
    webhooks_max: Annotated[int, Field(ge=0)] = 20
    """Maximum number of webhooks of an owner; 0: none."""
    webhook_networks: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)] = ()
    """Private networks that webhooks may reach, separated by commas: `127.0.0.0/8,10.1.2.0/24`
    (default: none).
    """
    webhook_http: bool = False
    """Allow webhooks over plain HTTP, which is not encrypted."""
    webhook_timeout_seconds: Timeout = 10.0
    """Timeout of a webhook request. It is retried later."""
    url: str = "http://127.0.0.1:8642"
    """URL of the service for the client and the command line."""
    api_key: str | None = None
    """API key that the client sends as a bearer token."""
    commit: str | None = None
    """Git commit of the installation, recorded in provenance (default: the commit of the checkout,
    if any).
    """

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
