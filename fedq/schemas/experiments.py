"""Experiments: as listed, as read, as planned, and what can be changed of them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedcore.block import MAX_ROUNDS, Seed
from fedcore.platform.status import Status
from fedcore.simulation.halving import Verdict
from fedcore.spec.experiment import Tag
from fedq.schemas.base import Schema


class Progress(Schema):
    """How far an experiment is."""

    rounds_done: int
    """Rounds committed, over all runs."""
    rounds_total: int
    """Rounds asked for, over all runs; of a run that diverged, those it has."""
    fraction: float
    """Share of the rounds done, 0 to 1."""
    runs: dict[Status, int]
    """Number of runs by status; a status that no run has is left out."""
    eta_s: float | None
    """Seconds to go at the present pace; null while nothing runs."""


class ArmSummary(Schema):
    """One point of the sweep."""

    index: int
    """Position in the sweep's product, from 0; differences are to arm 0 unless another is asked for."""
    name: str
    """What sets it apart, as `momentum=0.9`; the algorithm's kind where there is no sweep."""
    settings: dict[str, Any]
    """The swept paths and their values here."""
    rung: int | None = None
    """Under a search, the round of the last rung that all its runs have come to; null before the first."""
    value: float | None = None
    """The mean of the search's metric over its seeds there; null where one of them failed, diverged or has none."""
    verdict: Verdict | None = None
    """What became of it there; null while that is not decided."""


class ExperimentSummary(Schema):
    """An experiment, as listed."""

    id: str
    """Opaque; sorts by time of creation."""
    name: str
    """As submitted, or as changed since."""
    description: str
    """As submitted."""
    tags: list[str]
    """As submitted, or as changed since."""
    status: Status
    """Of the runs taken together."""
    priority: int
    """0 to 9; higher goes first."""
    owner: str
    """Who submitted it."""
    created_at: datetime
    """When it was submitted (UTC, as all times)."""
    updated_at: datetime
    """When its status, name, tags or priority last changed."""
    started_at: datetime | None
    """When the first of its runs was first taken up by a worker."""
    finished_at: datetime | None
    """When the last of its runs ended."""
    error: str | None
    """Why it failed: the error of a failed run."""
    progress: Progress
    """How far it is."""


class Experiment(ExperimentSummary):
    """An experiment with its specification, arms and provenance."""

    arms: list[ArmSummary]
    """The points of the sweep; one when there is no sweep."""
    specification: dict[str, Any]
    """The specification as validated, every default written out; it can be submitted again."""
    provenance: dict[str, Any]
    """What it was made from: the version of FedQ that took it (`fedq`, and its git `commit` where that is known), the preset with its
    overrides, the experiment that it `reproduces`, and `specification_sha256`. Its runs say what carried them out."""


class ExperimentPage(Schema):
    """A page of experiments, newest first."""

    items: list[ExperimentSummary]
    """The experiments."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class ArmPlan(ArmSummary):
    """One arm of a dry run, with the work that each of its runs would be."""

    runs: int
    """One per seed."""
    parameters: int
    """D, the number of the model's parameters."""
    local_steps: int
    """Estimated mini-batch steps of one run, over all rounds."""
    bytes_up: int
    """Estimated bytes that the clients of one run send, over all rounds."""
    bytes_down: int
    """Estimated bytes that the clients of one run receive, over all rounds."""
    memory_bytes: int
    """Estimated working memory of one run: data, server state, client memory and a cohort in training."""


class Stretch(Schema):
    """The rounds from one rung of a search to the next."""

    until: int
    """The round at which it ends: that of a rung, or the last."""
    arms: int
    """Arms that play it."""


class SearchPlan(Schema):
    """What a search comes to where every rung keeps as many arms as the synchronous kind does; `asha` may promote a few more."""

    stretches: list[Stretch]
    """From the first round to the last."""
    rounds: int
    """Rounds, over all runs."""
    saving: float
    """Share of the rounds that are not played, 0 to 1."""


class Plan(Schema):
    """What a specification would set in motion; nothing was stored."""

    name: str
    """The experiment's name."""
    arms: list[ArmPlan]
    """The points of the sweep."""
    seeds: list[int]
    """Each arm runs once with each."""
    runs: int
    """Arms times seeds."""
    rounds: int
    """Rounds, over all runs; with a search or early stopping at most so many, as all that follows."""
    search: "SearchPlan | None" = None
    """What the search saves."""
    local_steps: int
    """Estimated mini-batch steps, over all runs."""
    bytes_up: int
    """Estimated bytes that clients send, over all runs."""
    bytes_down: int
    """Estimated bytes that clients receive, over all runs."""
    memory_bytes: int
    """Estimated working memory of the largest run."""
    seconds: float | None = None
    """Estimated time on one worker, by what the latest runs with its data, model and batch size took here; null where there are none."""
    workers: int = 0
    """Workers of its queue that are there."""
    warnings: list[str]
    """What would keep its runs waiting at present, or have them refused."""
    specification: dict[str, Any]
    """The specification as validated, every default written out."""


class ExperimentExtension(BaseModel):
    """What an experiment is to have more of; asked for neither, it stays as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    """Communication rounds of each run in all, those it has among them; absent, as many as before."""
    seeds: list[Seed] | None = Field(default=None, max_length=1_000)
    """Seeds that it is to have beside its own; those it has already stay as they are."""


class ExperimentEdit(BaseModel):
    """What can be changed of an experiment after it was submitted; a field that is left out stays."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str | None = Field(default=None, min_length=1, max_length=200)
    """For people."""
    tags: list[Tag] | None = Field(default=None, max_length=32)
    """For finding it again."""
    priority: int | None = Field(default=None, ge=0, le=9)
    """Higher goes first; running runs take note after their round, looked for ten times a second at most."""
