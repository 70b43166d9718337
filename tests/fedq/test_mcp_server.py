"""The MCP server, used by the SDK's own client: over standard input and output, and in one process."""

import base64
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult, ImageContent, TextContent

from fedcore.spec import yaml_documents
from fedq.client import AsyncClient
from fedq.mcp_server import build_server
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, TWO_ARMS
from tests.support.service import Service

RUNS = 6


def _read(answer: CallToolResult) -> Any:
    """The JSON documents of an answer."""
    assert not answer.is_error, answer.content
    documents = [json.loads(text) for text in _texts(answer)]
    return documents[0] if len(documents) == 1 else documents


def _texts(answer: CallToolResult) -> list[str]:
    return [part.text for part in answer.content if isinstance(part, TextContent)]


async def _use(service: Service) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "fedq.cli", "mcp"],
        env={
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FEDQ_URL": service.url,
            "FEDQ_API_KEY": service.key,
        },
    )
    async with Client(stdio_client(server)) as agent:
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
        assert tools.keys() == {"plan", "submit", "watch", "arms", "compare", "figure"}
        assert all(tool.description for tool in tools.values())
        wrong = await agent.call_tool(
            "plan", {"specification": TWO_ARMS, "overrides": {"rounds": 0, "seeds": []}}
        )
        assert wrong.is_error
        assert {"/rounds", "/seeds"} <= {line.partition(":")[0] for line in _texts(wrong)[0].splitlines()}
        assert _read(await agent.call_tool("plan", {"specification": TWO_ARMS}))["runs"] == RUNS
        given = {"specification": TWO_ARMS, "idempotency_key": "an agent's"}
        made, again = [_read(await agent.call_tool("submit", given)) for _ in range(2)]
        assert (made["id"], made["status"]) == (again["id"], "queued")
        early = _read(await agent.call_tool("watch", {"experiment": made["id"], "timeout_s": 0}))
        assert early["status"] == "queued"
        await anyio.to_thread.run_sync(carry_out, service.database, service.storage, RUNS)
        ended = _read(await agent.call_tool("watch", {"experiment": made["id"]}))
        assert (ended["status"], ended["progress"]["rounds_done"]) == ("succeeded", 18)
        best = await agent.call_tool(
            "arms", {"experiments": [made["id"]], "sort": "-local.lr", "fields": "local.lr"}
        )
        assert [arm["local.lr"] for arm in _read(best)] == [0.1, 0.05]
        compared = _read(await agent.call_tool("compare", {"arms": [made["id"]]}))
        assert len(compared["arms"]) == 2
        (picture,) = (await agent.call_tool("figure", {"experiment": made["id"]})).content
        assert isinstance(picture, ImageContent)
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")
        absent = await agent.call_tool("watch", {"experiment": "exp_z"})
        assert absent.is_error
        assert _texts(absent)[0].endswith("there is no experiment 'exp_z'")


@pytest.mark.slow
def test_an_agent_plans_submits_watches_and_reads(service: Service) -> None:
    anyio.run(_use, service)


def test_an_agent_reads_no_file_of_this_machine(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = json.dumps({"auths": {"registry.example": "hunter2"}})
    names = ("secret.json", "secret.yaml", "secret.yml", "SECRET.JSON", "secret")
    for name in names:
        (tmp_path / name).write_text(secret)
    given = [*names, *(f"./{name}" for name in names), *(str(tmp_path / name) for name in names)]

    async def ask(agent: Client) -> None:
        for tool in ("plan", "submit"):
            for name in given:
                told = await agent.call_tool(tool, {"specification": name})
                assert told.is_error, name
                assert not any("auths" in text or "hunter2" in text for text in _texts(told)), name
            # Nor does an agent learn which files there are.
            there, absent = [
                _texts(await agent.call_tool(tool, {"specification": f"{tmp_path}/{name}.json"}))
                for name in ("secret", "hidden")
            ]
            assert there == [text.replace("hidden", "secret") for text in absent]

    _in_process(service, ask)


def test_a_specification_is_an_object_a_text_or_the_name_of_a_preset(service: Service) -> None:
    async def ask(agent: Client) -> None:
        for specification in (TINY, json.dumps(TINY), yaml_documents.dump(TINY)):
            plan = _read(await agent.call_tool("plan", {"specification": specification}))
            assert plan["runs"] == 1
            changed = {"specification": specification, "overrides": {"seeds": [1, 2]}}
            assert _read(await agent.call_tool("plan", changed))["runs"] == 2
        demo = _read(await agent.call_tool("plan", {"specification": "demo", "overrides": {"seeds": [1]}}))
        assert demo["runs"] == len(demo["arms"])
        for wrong, reason in (
            ("nobody-has-it", "no preset"),
            ("", "mapping"),
            ("- 1\n- 2", "mapping"),
            ("{", "not valid JSON or YAML"),
        ):
            told = await agent.call_tool("plan", {"specification": wrong})
            assert told.is_error
            assert reason in _texts(told)[0], _texts(told)

    _in_process(service, ask)


HOSTILE = ("../../keys", "a/runs", "", "..", "x" * 100_000, "a\nb", "a?b#c")


def test_requests_of_an_agent_are_answered_in_words(service: Service) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("watch", {"experiment": text, "timeout_s": 0}) for text in HOSTILE),
        *(("figure", {"experiment": text}) for text in HOSTILE),
        *(("figure", {"experiment": "exp_z", "metric": text}) for text in HOSTILE),
        *(("compare", {"arms": [text]}) for text in HOSTILE),
        *(("compare", {"arms": ["exp_z"], "metric": text}) for text in HOSTILE),
        ("compare", {"arms": ["exp_z"], "baseline": 10**30}),
        *(("arms", {"filter": text}) for text in HOSTILE if text),
        *(("arms", {"sort": text}) for text in HOSTILE if text),
        *(("arms", {"fields": text}) for text in HOSTILE if text),
        *(("arms", {"experiments": [text]}) for text in HOSTILE),
        *(("plan", {"specification": text}) for text in HOSTILE),
        *(("plan", {"specification": {text: text}}) for text in HOSTILE),
        ("plan", {"specification": "[" * 100_000}),
        *(("submit", {"specification": TINY, "idempotency_key": text}) for text in HOSTILE if text),
    ]

    async def ask(agent: Client) -> None:
        for tool, arguments in asked:
            told = await agent.call_tool(tool, arguments)
            if told.is_error:
                (text,) = _texts(told)
                assert text != f"Error executing tool {tool}", arguments
                assert "Traceback" not in text

    _in_process(service, ask)


def _in_process(service: Service, ask: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            AsyncClient(service.url, service.key) as client,
            Client(build_server(client)) as agent,
        ):
            await ask(agent)

    anyio.run(main)
