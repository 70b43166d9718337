"""The client: a method per thing that a service can be asked."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args
from uuid import uuid4

from api.client.events import Event, arrivals_of, follow
from api.client.progress import report
from api.client.results import Frame, Results, rows_of
from api.client.specification import Specification, body_of
from api.client.transport import Transport, given, walk
from api.client.uploads import TIMEOUT_S as UPLOAD_TIMEOUT_S
from api.client.uploads import Pieces, Upload, file_of, name_of
from api.client.webhooks import Webhooks
from api.schemas import (
    AuditEntry,
    AuditPage,
    Catalog,
    Claims,
    Dataset,
    DatasetPage,
    Experiment,
    ExperimentPage,
    ExperimentSummary,
    Key,
    KeyEdit,
    KeyPage,
    KeyRequest,
    KeyStanding,
    Me,
    MetricsPage,
    NewKey,
    Plan,
    Preset,
    PresetList,
    PresetSummary,
    Queues,
    RoundRow,
    Run,
    RunPage,
    SearchPage,
    Worker,
    Workers,
)
from fedcore import own_key
from fedcore.settings import settings
from fedcore.status import Status

EXPERIMENTS = "/v1/experiments"
DATASETS = "/v1/datasets"
KEYS = "/v1/keys"
JSON = {"Content-Type": "application/json"}
RETRIES = 3

Form = Literal["svg", "png"]
Horizontal = Literal["round", "bytes", "time"]


class Client:
    """Talks to one FedQ service. Use it as a context manager, or `close` it.

    Every method raises ServiceUnreachableError when no answer comes, and a ServiceError when the service refuses:
    InvalidRequestError, NotFoundError, ConflictError, NotAllowedError.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, retries: int = RETRIES) -> None:
        """Absent, `url` and `api_key` are FEDQ_URL and FEDQ_API_KEY; a request without an answer is repeated `retries` times.

        The key of an embedded stack on this machine is found without being given.
        """
        address = url or settings().url
        self._transport = Transport(address, api_key or settings().api_key or own_key.find(address), retries)
        self.webhooks = Webhooks(self._transport)
        """Whom the service tells of changes of its own accord."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._transport.url

    # submitting

    def submit(
        self, specification: Specification, overrides: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Experiment:
        """Submit a document, an ExperimentSpec, a JSON or YAML file, or a preset by its name, with `overrides` merged in.

        Nothing is submitted twice when a connection breaks: the request carries a key, by which the service knows a
        repetition. Give your own `idempotency_key` to make repetitions of the whole program safe too.
        """
        content = body_of(specification, overrides or {})
        headers = JSON | {"Idempotency-Key": idempotency_key or str(uuid4())}
        return self._transport.send(Experiment, "POST", EXPERIMENTS, content=content, headers=headers)

    def dry_run(self, specification: Specification, overrides: Mapping[str, Any] | None = None) -> Plan:
        """What `submit` would set in motion: arms, runs, estimated work, memory and bytes. Nothing is stored."""
        content = body_of(specification, overrides or {})
        return self._transport.send(Plan, "POST", EXPERIMENTS, content=content, headers=JSON, params={"dry_run": True})

    # reading

    def experiment(self, id: str) -> Experiment:
        """An experiment with its status, progress, specification and provenance."""
        return self._transport.read(Experiment, f"{EXPERIMENTS}/{id}")

    def experiments(
        self,
        *,
        status: Status | None = None,
        tag: str | None = None,
        name: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Iterator[ExperimentSummary]:
        """The experiments that match, newest first, fetched page by page."""
        filters = {"status": status, "tag": tag, "name": name, "created_after": created_after, "created_before": created_before}
        return walk(lambda cursor: self._transport.read(ExperimentPage, EXPERIMENTS, cursor=cursor, **filters))

    def runs(self, id: str) -> list[Run]:
        """The runs of an experiment, in order of arm and seed."""
        return list(walk(lambda cursor: self._transport.read(RunPage, f"{EXPERIMENTS}/{id}/runs", cursor=cursor)))

    def run(self, run_id: str) -> Run:
        """A run."""
        return self._transport.read(Run, f"/v1/runs/{run_id}")

    def rounds(self, run_id: str, after: int = 0) -> Iterator[RoundRow]:
        """The rows of a run past round `after`."""
        while (page := self._transport.read(MetricsPage, f"/v1/runs/{run_id}/metrics", after=after)).items:
            yield from page.items
            after = page.next

    def metrics(self, id: str) -> Frame:
        """Every round of every run of an experiment, one a line."""
        return rows_of((run, self.rounds(run.id)) for run in self.runs(id))

    def results(
        self, id: str, *, baseline: str | int | None = None, metrics: Sequence[str] | None = None, points: int | None = None
    ) -> Results:
        """What came out, as far as the runs are; `.to_pandas()` and `.to_polars()` make frames of it.

        Differences are to the arm `baseline`, by its name or index; absent, to the first. Only of these `metrics`, absent of all; curves
        of at most so many `points`, their extremes among them, absent 2,000.
        """
        return self._transport.read(Results, f"{EXPERIMENTS}/{id}/results", baseline=baseline, metric=metrics, points=points)

    def claims(self, id: str) -> Claims:
        """What a publication printed and claimed of the preset that an experiment was submitted as, beside what came out."""
        return self._transport.read(Claims, f"{EXPERIMENTS}/{id}/claims")

    def search(self, id: str) -> SearchPage:
        """What the search of an experiment has decided, and on what: every arm that has come to a rung, in the order in which they came.

        NotFoundError where it has no search.
        """
        return arrivals_of(self._transport, id)

    # following

    def events(self, id: str) -> Iterator[Event]:
        """Every round, decision of a search and change of status as it happens, until the experiment has ended.

        None is lost and none told twice when the connection breaks; where event streams do not get through, it polls.
        """
        return (event for event in follow(self._transport, id) if event is not None)

    def wait(self, id: str, *, progress: bool = False, timeout_s: float = inf) -> Experiment:
        """Wait until an experiment has ended and return it; `progress` shows a bar per run.

        Raises TimeoutError when it has not ended after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        with report(self.runs(id)) if progress else nullcontext(_ignore) as tell:
            for event in follow(self._transport, id, quiet_s=timeout_s):
                if event is not None:
                    tell(event)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{id} has not ended after {timeout_s:g} seconds")
        return self.experiment(id)

    # steering

    def cancel(self, id: str) -> Experiment:
        """End an experiment at the next round boundary; what it has done stays."""
        return self._act(id, "cancel")

    def pause(self, id: str) -> Experiment:
        """Stop an experiment at the next round boundary until `resume`."""
        return self._act(id, "pause")

    def resume(self, id: str) -> Experiment:
        """Let a paused experiment go on."""
        return self._act(id, "resume")

    def retry(self, id: str) -> Experiment:
        """Queue the failed and cancelled runs of an experiment again; they go on from their last checkpoint."""
        return self._act(id, "retry")

    def edit(self, id: str, *, name: str | None = None, tags: Sequence[str] | None = None, priority: int | None = None) -> Experiment:
        """Change what is given and leave the rest."""
        changes = given(name=name, tags=tags, priority=priority)
        return self._transport.send(Experiment, "PATCH", f"{EXPERIMENTS}/{id}", json=changes)

    def delete(self, id: str) -> None:
        """Remove an experiment, with its rows and files."""
        self._transport.request("DELETE", f"{EXPERIMENTS}/{id}")

    # files

    def figure(self, id: str, form: Form = "svg", *, metric: str | None = None, x: Horizontal = "round") -> bytes:
        """A picture of the curves of a metric, with their spread over the seeds."""
        return self._transport.request("GET", f"{EXPERIMENTS}/{id}/figure.{form}", params=given(metric=metric, x=x)).content

    def save_figure(self, id: str, path: str | Path, *, metric: str | None = None, x: Horizontal = "round") -> Path:
        """Write that picture to `path`, as SVG or PNG by its suffix; returns the path."""
        form = Path(path).suffix.lower().removeprefix(".")
        if form not in get_args(Form):
            raise ValueError(f"a figure is .svg or .png, not {path}")
        return self._transport.download(f"{EXPERIMENTS}/{id}/figure.{form}", Path(path), metric=metric, x=x)

    def model(self, run_id: str) -> bytes:
        """The final model of a run, as safetensors."""
        return self._transport.request("GET", f"/v1/runs/{run_id}/model").content

    def save_model(self, run_id: str, path: str | Path) -> Path:
        """Write that model to `path`; returns the path."""
        return self._transport.download(f"/v1/runs/{run_id}/model", Path(path))

    def save_checkpoint(self, run_id: str, path: str | Path) -> Path:
        """Write the newest checkpoint of a run to `path`; returns the path."""
        return self._transport.download(f"/v1/runs/{run_id}/checkpoint", Path(path))

    # data sets

    def upload(self, data: Upload, name: str | None = None, *, idempotency_key: str | None = None) -> Dataset:
        """Upload an NPZ or Parquet file, or arrays by name; its id is what `problem.dataset: {kind: uploaded, id: ...}` names.

        Absent, `name` is that of the file. The same content twice is the same data set, under its first name. Raises
        UnreadableDataError for what cannot be sent.
        """
        params = {"name": name or name_of(data)}
        with file_of(data) as file:
            headers = given(**{"Content-Length": str(file.stat().st_size), "Idempotency-Key": idempotency_key})
            options = {"content": Pieces(file), "headers": headers, "params": params, "timeout": UPLOAD_TIMEOUT_S}
            return self._transport.send(Dataset, "POST", DATASETS, **options)

    def dataset(self, id: str) -> Dataset:
        """A data set with its shape, classes, clients and their sizes."""
        return self._transport.read(Dataset, f"{DATASETS}/{id}")

    def datasets(self) -> Iterator[Dataset]:
        """The data sets, newest first, fetched page by page."""
        return walk(lambda cursor: self._transport.read(DatasetPage, DATASETS, cursor=cursor))

    def delete_dataset(self, id: str) -> None:
        """Remove a data set; ConflictError while an unfinished experiment trains on it."""
        self._transport.request("DELETE", f"{DATASETS}/{id}")

    # what there is

    def presets(self) -> list[PresetSummary]:
        """The specifications that ship with the service."""
        return self._transport.read(PresetList, "/v1/presets").items

    def preset(self, name: str) -> Preset:
        """A preset with its specification."""
        return self._transport.read(Preset, f"/v1/presets/{name}")

    def catalogue(self) -> Catalog:
        """Everything a specification can ask for, with JSON schemas."""
        return self._transport.read(Catalog, "/v1/catalog")

    def queues(self) -> Queues:
        """What waits and what runs."""
        return self._transport.read(Queues, "/v1/queue")

    def workers(self) -> list[Worker]:
        """The workers that have reported of late."""
        return self._transport.read(Workers, "/v1/workers").items

    # keys

    def me(self) -> Me:
        """The key that this client sends, and what it allows."""
        return self._transport.read(Me, "/v1/me")

    def create_key(self, wanted: KeyRequest) -> NewKey:
        """Make an API key; its `key` cannot be read again. For administrators."""
        return self._transport.send(NewKey, "POST", KEYS, content=wanted.model_dump_json(), headers=JSON)

    def keys(self) -> Iterator[Key]:
        """All keys, newest first, fetched page by page. For administrators."""
        return walk(lambda cursor: self._transport.read(KeyPage, KEYS, cursor=cursor))

    def key(self, id: str) -> KeyStanding:
        """A key, and how much of its quotas is used. For administrators; `me` tells everybody of their own."""
        return self._transport.read(KeyStanding, f"{KEYS}/{id}")

    def edit_key(self, id: str, changes: KeyEdit) -> Key:
        """Change what is given and leave the rest; None takes an end or a limit away. For administrators."""
        content = changes.model_dump_json(exclude_unset=True)
        return self._transport.send(Key, "PATCH", f"{KEYS}/{id}", content=content, headers=JSON)

    def revoke_key(self, id: str) -> Key:
        """End a key. For administrators."""
        return self._transport.send(Key, "POST", f"{KEYS}/{id}/revoke")

    def audit(self, *, owner: str | None = None, target: str | None = None) -> Iterator[AuditEntry]:
        """Who changed what, or tried to, newest first, fetched page by page. For administrators."""
        return walk(lambda cursor: self._transport.read(AuditPage, "/v1/audit", cursor=cursor, owner=owner, target=target))

    def _act(self, id: str, action: str) -> Experiment:
        return self._transport.send(Experiment, "POST", f"{EXPERIMENTS}/{id}/{action}")


def _ignore(_event: Event) -> None:
    """Tell nobody."""
