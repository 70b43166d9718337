"""Carries out the blocks of a page."""

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from fedcore import ExperimentSpec
from tests.docs.expected import matched, renamed
from tests.docs.shell import PATIENCE_S, Shell
from tests.support.polling import eventually

ROOT = Path(__file__).parents[2]
WHOLE = {
    "name": "the rest of a specification",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 20},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 10},
    "rounds": 100,
}
SETTINGS = re.compile(r"^(?:[A-Z_]+=\S+ )+")
FOREGROUND = ("fedq up", "docker ", "kubectl ", "source ", "make ", "python -m bench ")
"""Commands that are not run; see the head of this package."""


def targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass
class Desk:
    """Where the blocks of a page are carried out, one after the other."""

    folder: Path
    shell: Shell
    names: dict[str, str] = field(default_factory=dict)
    """Names on the page, with their names here."""

    def console(self, example: Example) -> None:
        """Type the commands of a block, and hold what they print against the lines below each."""
        for command, expected in _commands(str(example.parsed)):
            self._command(renamed(command, self.names), expected)

    def _command(self, command: str, expected: str) -> None:
        bare = SETTINGS.sub("", command)
        if bare.startswith("make "):
            assert bare.split()[1] in targets(), f"there is no `{bare}`"
        if bare.startswith(FOREGROUND):
            return
        answer = self.shell.type(command)
        assert answer.code == 0, f"$ {command}\n{answer.text}\n(exit code {answer.code})"
        if command.endswith("&"):
            eventually(lambda: _listens(int(self.names["8000"])), timeout_s=PATIENCE_S)
        if expected:
            names = matched(expected, answer.text)
            assert names is not None, f"$ {command}\nprinted\n{answer.text}\nand not\n{expected}"
            self.names |= names

    def python(self, example: Example) -> None:
        """Put a program that has a name where it belongs.

        Run another one with what those before it have defined.
        """
        source = renamed(str(example.parsed), self.names)
        if not self._kept(source):
            exec(compile("\n" * example.line + source, example.path, "exec"), example.namespace)

    def yaml(self, example: Example) -> None:
        """Read a document.

        Put one that has a name where it belongs, and complete one that is a part of a
        specification.
        """
        text = renamed(str(example.parsed), self.names)
        document = yaml.safe_load(text)
        if not self._kept(text) and document.keys() <= ExperimentSpec.model_fields.keys():
            ExperimentSpec.model_validate(WHOLE | document)

    def _kept(self, text: str) -> bool:
        """Write a file that begins with its name; return True if it was one."""
        name = re.match(r"# (\S+\.(?:py|ya?ml)|Snakefile)\n", text)
        if name:
            path = self.folder / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return name is not None

    def file(self, example: Example) -> None:
        """Put a file where it belongs."""
        assert self._kept(str(example.parsed)), "a file says its name first"

    def json(self, example: Example) -> None:
        """Read a document."""
        json.loads(example.parsed)


def blocks(page: Path, desk: Desk | None) -> Document:
    """The blocks of a page, to be carried out at `desk`.

    Raises AssertionError for one of a language that nobody knows.
    """

    def refuse(example: Example) -> None:
        raise AssertionError(f"nobody carries out a block of {example.region.lexemes['arguments']!r}")

    known: dict[str, Any] = {"text": lambda _: None}
    if desk is not None:
        known |= {
            "console": desk.console,
            "python": desk.python,
            "yaml": desk.yaml,
            "json": desk.json,
            "snakemake": desk.file,
        }
    parsers = [CodeBlockParser(language, known.get(language, refuse)) for language in languages(page)]
    return Sybil(parsers).parse(page)


def specifications(page: Path) -> list[dict[str, Any]]:
    """The whole specifications that a page shows."""
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    documents = [yaml.safe_load(text) for text in shown]
    return [document for document in documents if {"problem", "algorithm"} <= {*document}]


def languages(page: Path) -> set[str]:
    """In which languages a page has blocks; raises AssertionError for a block that does not say."""
    fences = re.findall(r"^ *```(\S*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(fences[::2]), f"{page.name} has a block that does not say its language"
    return set(fences[::2])


def _commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with what is printed below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
