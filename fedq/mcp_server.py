"""The MCP server of `fedq mcp`: tools by which agents plan, submit and follow experiments and read
their results. It speaks to a FedQ service as any client does.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from fedcore.platform.version import find_release
from fedq.client import AsyncClient, ClientError, ServiceError
from fedq.client.bodies import parse
from fedq.schemas import Comparison, Experiment, ExperimentSummary, Plan

INSTRUCTIONS = """FedQ runs federated-learning experiments. An experiment is one specification; an arm is
one point of its sweep; a run is an arm with one seed. Plan a specification before you submit it: the plan
names invalid fields and estimates the work. Then watch the experiment until it has ended, and read its arms,
the comparison and the figure. `best_arms` says which arms may be the best; do not call an arm the best or
better without it, or without a verdict.
"""
CURVE_POINTS = 50
"""Points of the curves in a comparison: enough to see their course."""
LONGEST_WAIT_S = 600.0
PRESET_NAME = re.compile(r"[\w.-]{1,100}")
"""No text of a document is a single word."""
READS = ToolAnnotations(read_only_hint=True)

Specification = Annotated[
    dict[str, Any] | str,
    Field(
        description=(
            "A specification with `name`, `problem`, `algorithm`, `local` and `rounds`, as an object or as"
            " YAML or JSON text, or the name of a preset such as `demo`. Files are not read."
        )
    ),
]
Overrides = Annotated[
    dict[str, Any] | None,
    Field(
        description="Merged into the specification, e.g. {'rounds': 20, 'sweep': {'local.lr': [0.1, 0.01]}}."
    ),
]
ExperimentId = Annotated[str, Field(description="Id of an experiment, `exp_...`.")]
Metric = Annotated[
    str | None, Field(description="A metric, e.g. `test_accuracy` (default: the headline metric).")
]


def build_server(client: AsyncClient) -> MCPServer[None]:
    """Return a server whose tools call the service of `client`."""
    server: MCPServer[None] = MCPServer(
        "fedq", instructions=INSTRUCTIONS, version=find_release(), log_level="WARNING"
    )

    @server.tool(annotations=READS, structured_output=False)
    async def plan(specification: Specification, overrides: Overrides = None) -> Plan:
        """Check a specification and estimate its arms, runs, work, memory and bytes. Submits nothing."""
        with _errors_for_agents():
            return await client.dry_run(*_document(specification, overrides))

    @server.tool(structured_output=False)
    async def submit(
        specification: Specification,
        overrides: Overrides = None,
        idempotency_key: Annotated[
            str | None, Field(description="Submitting again with the same key creates nothing new.")
        ] = None,
    ) -> dict[str, Any]:
        """Submit an experiment: its runs are queued and start when a worker is free."""
        with _errors_for_agents():
            document, changes = _document(specification, overrides)
            return _summary(await client.submit(document, changes, idempotency_key=idempotency_key))

    @server.tool(annotations=READS, structured_output=False)
    async def watch(
        experiment: ExperimentId,
        timeout_s: Annotated[
            float, Field(ge=0, le=LONGEST_WAIT_S, description="Longest time to wait, in seconds.")
        ] = 60.0,
    ) -> dict[str, Any]:
        """Wait until an experiment has ended, at most `timeout_s`; returns its status and progress
        then. Call it again while the status is `queued` or `running`.
        """
        with _errors_for_agents():
            try:
                return _summary(await client.wait(experiment, timeout_s=timeout_s))
            except TimeoutError:
                return _summary(await client.experiment(experiment))

    @server.tool(annotations=READS, structured_output=False)
    async def arms(
        experiments: Annotated[
            list[str] | None, Field(description="Ids of experiments (default: all).")
        ] = None,
        filter: Annotated[  # noqa: A002 - its name in the service
            str | None, Field(description="E.g. `algorithm.kind = fedprox and local.lr < 0.1`.")
        ] = None,
        sort: Annotated[
            str | None,
            Field(description="Columns, `-` before descending ones: `-test_accuracy.best,local.lr`."),
        ] = None,
        fields: Annotated[
            str | None,
            Field(description="Settings and metrics to return, e.g. `local.lr,test_accuracy.final`."),
        ] = None,
        limit: Annotated[int, Field(ge=1, le=1_000, description="Maximum number of arms.")] = 50,
    ) -> list[dict[str, Any]]:
        """Return arms with their settings, status, and best and final metrics over the seeds."""
        with _errors_for_agents():
            found = await client.arms(experiments=experiments, filter=filter, sort=sort, fields=fields)
        return found.lines[:limit]

    @server.tool(annotations=READS, structured_output=False)
    async def compare(
        arms: Annotated[
            list[str],
            Field(description="Experiments by id, or arms as `ID:INDEX` or `ID:NAME`.", min_length=1),
        ],
        metric: Metric = None,
        baseline: Annotated[
            int | None, Field(ge=0, description="Position of an arm that the others are compared with.")
        ] = None,
    ) -> Comparison:
        """Compare arms of any experiments: summaries with intervals over seeds, and each beside the
        best of the others, or the baseline, with a verdict.
        """
        with _errors_for_agents():
            metrics = None if metric is None else [metric]
            return await client.compare(arms, baseline=baseline, metrics=metrics, points=CURVE_POINTS)

    @server.tool(annotations=READS, structured_output=False)
    async def figure(experiment: ExperimentId, metric: Metric = None) -> Image:
        """Draw the curves of a metric, with their spread over seeds."""
        with _errors_for_agents():
            return Image(data=await client.figure(experiment, "png", metric=metric), format="png")

    return server


async def serve(api_key: str | None = None) -> None:
    """Serve the tools over standard input and output until the input ends.

    Address and key of the service are found as by Client.
    """
    async with AsyncClient(api_key=api_key) as client:
        await build_server(client).run_stdio_async()


def _document(
    specification: dict[str, Any] | str, overrides: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a document to send, and what is merged into it here.

    The client would take some texts for names of files on this machine, which agents may not read.
    """
    if isinstance(specification, dict):
        return specification, overrides or {}
    if PRESET_NAME.fullmatch(specification):
        return {"preset": specification, "overrides": overrides or {}}, {}
    return parse(specification, "the specification"), overrides or {}


def _summary(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as listed: its specification and arms would fill an agent's context."""
    return experiment.model_dump(mode="json", include=set(ExperimentSummary.model_fields))


@contextmanager
def _errors_for_agents() -> Iterator[None]:
    """Turn errors of the client into errors of a tool, which name each invalid field."""
    try:
        yield
    except ClientError as error:
        flaws = error.flaws if isinstance(error, ServiceError) else []
        lines = [f"{flaw.pointer or '/'}: {flaw.detail}" for flaw in flaws]
        raise ToolError("\n".join([str(error), *lines]) if len(lines) > 1 else str(error)) from error
