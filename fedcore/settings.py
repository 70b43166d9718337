"""Every setting of FedQ, read once from the environment and an optional `.env` file."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, IPvAnyNetwork, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fedcore.errors import SettingsError


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0)]
Timeout = Annotated[float, Field(gt=0, le=1_000_000)]
"""Seconds that sockets and PostgreSQL count too, in milliseconds and 31 bits."""
RetentionDays = Annotated[float, Field(gt=0, le=10_000)]
_Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Words = Annotated[_Words, Field(min_length=1)]


class Settings(BaseSettings):
    """Settings by environment variable `FEDQ_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="FEDQ_", env_file=".env", extra="ignore", frozen=True, use_attribute_docstrings=True)

    home: Path = Path(".fedq")
    """State of the embedded stack: database, broker socket, checkpoints, models, logs. Workers note here which runs they hold."""
    data_dir: Path = Path("~/.cache/fedq/data")
    """Data sets, laid out as torchvision does (`MNIST/raw/...`)."""
    engine_cache: Path = Path("~/.cache/fedq/engines.json")
    """Where it is remembered which engine was the fastest. Where it cannot be written, each process measures for itself."""
    database_url: str | None = None
    """SQLAlchemy URL; absent, SQLite in `home`."""
    broker_url: str | None = None
    """Celery broker URL; absent, the embedded stack's own Valkey in `home`."""
    storage_url: str | None = None
    """Where checkpoints, models and uploaded data sets go: a folder or an fsspec URL; absent, a folder in `home`."""
    slice_seconds: Seconds = 2.0
    """Rounds are committed together about this often."""
    lease_seconds: Timeout = 10.0
    """A worker that has not renewed its lease for this long has lost its run."""
    grace_seconds: Seconds = 30.0
    """A worker that is asked to end has so long to finish its round and commit it; then it ends without, its run left to its lease."""
    turn_seconds: Seconds = 60.0
    """A worker hands its run back after this long when others of the same priority wait."""
    gang_size: Annotated[int, Field(ge=1)] = 8
    """So many runs of one experiment are trained together at most, where that is faster than one after another."""
    client_memory_bytes: Annotated[int, Field(ge=0)] = 2 << 30
    """What the clients of a run keep between rounds lies in memory up to so many bytes, and beyond in a file that goes with the process."""
    client_dir: Path | None = None
    """Where that file lies; absent, the system's folder for temporary files."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """A run that is lost or fails this often without finishing a round in between is failed."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2.0
    """A run that failed is taken up again after about this long, each time twice as long until it finishes a round; after 300 s at most."""
    retry_seconds: Annotated[float, Field(ge=0)] = 60.0
    """So long a worker tries again while the database or the storage is away or full, before it lets go of a run."""
    queues: Words = ("default",)
    """Queues a worker serves, separated by commas."""
    device: str = "auto"
    """Where a worker computes: `cpu`, `cuda`, `cuda:1`; `auto` takes a GPU when there is one."""
    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """A worker takes no run that is estimated to need more; absent, what its machine, container or GPU has, less 1 GiB for libraries."""
    torch_threads: Annotated[int, Field(ge=1)] = 1
    """Threads of one worker's tensor library; one worker per core is faster than one worker on all."""
    redis_bin: Path | None = None
    """A redis-server or valkey-server for the embedded stack; absent, the wheel's or the one on PATH."""
    models_allowed: _Words = ()
    """Import paths of models that workers may run, as patterns separated by commas: `mylab.models:*`. Absent: none."""
    upload_max_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    """An uploaded data set may have this many bytes, as a file and unpacked."""
    upload_max_samples: Annotated[int, Field(ge=1)] = 10_000_000
    """Samples that an uploaded data set may have."""
    upload_max_features: Annotated[int, Field(ge=1)] = 1_000_000
    """Numbers that each of its samples may have."""
    upload_dir: Path | None = None
    """Where uploads wait on disk while they are checked; absent, the system's folder for temporary files."""
    audit_retention_days: RetentionDays | None = None
    """Entries of the audit log older than this, 10,000 days at most, are removed; absent: none is."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """How processes log: `json`, an object a line; `text`, for people; `auto` takes `text` on a terminal and `json` elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is not logged: anything below this level."""
    json_max_bytes: Annotated[int, Field(ge=1)] = 16 << 20
    """A request's body may have this many bytes as JSON."""
    yaml_max_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    """A request's body may have this many bytes as YAML, which is some fifty times slower to read."""
    max_runs: Annotated[int, Field(ge=1)] = 10_000
    """Runs, arms times seeds, that an experiment may have; more than 10,000 none may."""
    max_rounds: Annotated[int, Field(ge=1)] = 1_000_000
    """Rounds that a run may be asked for; more than 1,000,000 none may."""
    max_parameters: Annotated[int, Field(ge=1)] = 1_000_000_000
    """Parameters that a model may have; more than 1,000,000,000 none may."""
    rate_limit: Annotated[float, Field(ge=0)] = 200.0
    """Requests a second that an API key may send in the long run; 0: as many as it likes."""
    rate_burst: Annotated[int, Field(ge=1)] = 1_000
    """Requests that an API key may send at once."""
    streams_max: Annotated[int, Field(ge=0)] = 500
    """Event streams that an API key may hold open at each process of the API; 0: as many as it likes."""
    webhooks_max: Annotated[int, Field(ge=0)] = 20
    """Webhooks that an owner may have; 0: none."""
    webhook_networks: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)] = ()
    """Networks that webhooks may reach although they are not public, separated by commas: `127.0.0.0/8,10.1.2.0/24`. Absent: none."""
    webhook_http: bool = False
    """Whether webhooks may be sent by plain HTTP, which anybody on the way can read."""
    webhook_timeout_seconds: Timeout = 10.0
    """A receiver that has not answered by then is tried again later."""
    webhook_retention_days: RetentionDays = 30.0
    """What was delivered, or given up, is remembered for this long, 10,000 days at most."""
    url: str = "http://127.0.0.1:8642"
    """The service that the client and the command line talk to."""
    api_key: str | None = None
    """Sent as a bearer token by the client."""
    commit: str | None = None
    """The git commit that an installation was made from, for provenance; absent, that of the checkout it runs from, if any."""

    @property
    def database(self) -> str:
        """The database URL, resolved."""
        return self.database_url or f"sqlite:///{self.home.absolute() / 'fedq.db'}"

    @property
    def seen_seconds(self) -> float:
        """A worker that was not seen for so long is not there."""
        return 3 * self.lease_seconds

    @property
    def storage(self) -> str:
        """The storage URL, resolved."""
        return self.storage_url or str(self.home.absolute() / "storage")

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
        flaws = (f"FEDQ_{str(flaw['loc'][0]).upper()}: {flaw['msg']}, not {flaw['input']!r}" for flaw in error.errors())
        raise SettingsError("\n".join(flaws)) from error
