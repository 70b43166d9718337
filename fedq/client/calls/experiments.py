"""Experiments: submitted, read, followed, steered."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from datetime import datetime
from math import inf
from typing import Any
from uuid import uuid4

from fedcore.platform.status import Status
from fedq.client.calls.base import JSON, Calls
from fedq.client.events import NOW, Event, arrivals_of, follow
from fedq.client.models import Experiment
from fedq.client.progress import report
from fedq.client.specification import Specification, body_of
from fedq.client.transport import given, walk
from fedq.schemas import Claims, ExperimentPage, ExperimentSummary, MetricsPage, Plan, Reproduction, RoundRow, Run, RunPage, SearchPage

EXPERIMENTS = "/v1/experiments"


class ExperimentCalls(Calls):
    """Submits, reads, follows and steers."""

    async def submit(
        self, specification: Specification, overrides: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Experiment:
        """Submit a document, an ExperimentSpec, a JSON or YAML file, or a preset by its name, with `overrides` merged in.

        Nothing is submitted twice when a connection breaks: the request carries a key, by which the service knows a
        repetition. Give your own `idempotency_key` to make repetitions of the whole program safe too.
        """
        content = body_of(specification, overrides or {})
        headers = JSON | {"Idempotency-Key": idempotency_key or str(uuid4())}
        return await self._transport.send(Experiment, "POST", EXPERIMENTS, content=content, headers=headers)

    async def dry_run(self, specification: Specification, overrides: Mapping[str, Any] | None = None) -> Plan:
        """What `submit` would set in motion: arms, runs, estimated work, memory and bytes. Nothing is stored."""
        content = body_of(specification, overrides or {})
        params = {"dry_run": True}
        return await self._transport.send(Plan, "POST", EXPERIMENTS, content=content, headers=JSON, params=params, repeatable=True)

    async def experiment(self, id: str) -> Experiment:
        """An experiment with its status, progress, specification and provenance."""
        return await self._transport.read(Experiment, f"{EXPERIMENTS}/{id}")

    def experiments(
        self,
        *,
        status: Status | None = None,
        tag: str | None = None,
        name: str | None = None,
        search: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncGenerator[ExperimentSummary, None]:
        """The experiments that match, newest first, fetched page by page: with exactly this `name`, or with `search` as a part of it."""
        filters = given(status=status, tag=tag, name=name, search=search, created_after=created_after, created_before=created_before)
        return walk(lambda cursor: self._transport.read(ExperimentPage, EXPERIMENTS, cursor=cursor, **filters))

    async def runs(self, id: str) -> list[Run]:
        """The runs of an experiment, in order of arm and seed."""
        return [run async for run in walk(lambda cursor: self._transport.read(RunPage, f"{EXPERIMENTS}/{id}/runs", cursor=cursor))]

    async def run(self, run_id: str) -> Run:
        """A run."""
        return await self._transport.read(Run, f"/v1/runs/{run_id}")

    async def rounds(self, run_id: str, after: int = 0) -> AsyncGenerator[RoundRow, None]:
        """The rows of a run past round `after`."""
        while (page := await self._transport.read(MetricsPage, f"/v1/runs/{run_id}/metrics", after=after)).items:
            for row in page.items:
                yield row
            after = page.next

    async def claims(self, id: str) -> Claims:
        """What a publication printed and claimed of the preset that an experiment was submitted as, beside what came out."""
        return await self._transport.read(Claims, f"{EXPERIMENTS}/{id}/claims")

    async def search(self, id: str) -> SearchPage:
        """What the search of an experiment has decided, and on what: every arm that has come to a rung, in the order in which they came.

        NotFoundError where it has no search.
        """
        return await arrivals_of(self._transport, id)

    async def stream(self, id: str, *, since: str | None = None) -> AsyncGenerator[Event, None]:
        """Every round, decision of a search and change of status as it happens, until the experiment has ended.

        From the first round on; `since="now"` begins with how everything stands and the newest round of each run, and
        `since=results.position` with what came after these results. None is lost and none told twice when the connection breaks;
        where event streams do not get through, it polls.
        """
        async with aclosing(follow(self._transport, id, since=since)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def wait(self, id: str, *, progress: bool = False, timeout_s: float = inf) -> Experiment:
        """Wait until an experiment has ended and return it; `progress` shows a bar per run, on a terminal and in a notebook.

        Raises TimeoutError when it has not ended after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        with report(await self.runs(id)) if progress else nullcontext(_ignore) as tell:
            async with aclosing(follow(self._transport, id, since=NOW, quiet_s=timeout_s)) as events:
                async for event in events:
                    if event is not None:
                        tell(event)
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{id} has not ended after {timeout_s:g} seconds")
        return await self.experiment(id)

    async def cancel(self, id: str) -> Experiment:
        """End an experiment at the next round boundary; what it has done stays."""
        return await self._act(id, "cancel")

    async def pause(self, id: str) -> Experiment:
        """Stop an experiment at the next round boundary until `resume`."""
        return await self._act(id, "pause")

    async def resume(self, id: str) -> Experiment:
        """Let a paused experiment go on."""
        return await self._act(id, "resume")

    async def retry(self, id: str) -> Experiment:
        """Queue the failed and cancelled runs of an experiment again; they go on from their last checkpoint."""
        return await self._act(id, "retry")

    async def reproduce(self, id: str, *, idempotency_key: str | None = None) -> Experiment:
        """Repeat an experiment that has succeeded; `reproduction` of what this returns says whether it came out identical.

        As with `submit`, nothing is submitted twice when a connection breaks.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return await self._transport.send(Experiment, "POST", f"{EXPERIMENTS}/{id}/reproduce", headers=headers)

    async def reproduction(self, id: str) -> Reproduction:
        """Whether an experiment that `reproduce` made came out identical to its original, and if not, where it differs first.

        NotFoundError where it repeats none, or one that is gone.
        """
        return await self._transport.read(Reproduction, f"{EXPERIMENTS}/{id}/reproduction")

    async def extend(self, id: str, *, rounds: int | None = None, seeds: Sequence[int] | None = None) -> Experiment:
        """Let an experiment have so many rounds, and these seeds beside its own; what is done stays, and goes on from there.

        ConflictError where what was played would have been otherwise in more rounds.
        """
        wanted = given(rounds=rounds, seeds=seeds)
        return await self._transport.send(Experiment, "POST", f"{EXPERIMENTS}/{id}/extend", json=wanted, repeatable=True)

    async def edit(self, id: str, *, name: str | None = None, tags: Sequence[str] | None = None, priority: int | None = None) -> Experiment:
        """Change what is given and leave the rest."""
        changes = given(name=name, tags=tags, priority=priority)
        return await self._transport.send(Experiment, "PATCH", f"{EXPERIMENTS}/{id}", json=changes)

    async def delete(self, id: str) -> None:
        """Remove an experiment, with its rows and files."""
        await self._transport.remove(f"{EXPERIMENTS}/{id}")

    async def _act(self, id: str, action: str) -> Experiment:
        return await self._transport.send(Experiment, "POST", f"{EXPERIMENTS}/{id}/{action}", repeatable=True)


def _ignore(_event: Event) -> None:
    """Tell nobody."""
