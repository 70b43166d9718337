"""Nothing that FedQ reads can make it run code: files are safetensors, arrays without objects, JSON
and plain YAML.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.spec import yaml_documents
from workers.celery_app import celery_app

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    file
    for folder in ("api", "bench", "deploy", "fedcore", "migrations", "workers")
    for file in (ROOT / folder).rglob("*.py")
)
MODULES = frozenset(
    {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
)
CALLS = frozenset(
    {"eval", "exec", "yaml.unsafe_load", "yaml.full_load", "torch.load", "torch.save", "pandas.read_pickle"}
)
ARRAYS = frozenset({"np.load", "npy.read_array"})


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def _calls(tree: ast.AST) -> Iterator[tuple[str, dict[str | None, ast.expr]]]:
    """Calls with their keyword arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.AST]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES}


def test_no_module_imports_what_reads_objects_from_files(trees: dict[Path, ast.AST]) -> None:
    assert {
        str(file): found for file, tree in trees.items() if (found := MODULES & set(_imported(tree)))
    } == {}


def test_no_call_reads_code_or_objects(trees: dict[Path, ast.AST]) -> None:
    assert [
        (str(file), name) for file, tree in trees.items() for name, _ in _calls(tree) if name in CALLS
    ] == []


def test_arrays_are_read_without_objects(trees: dict[Path, ast.AST]) -> None:
    found = [
        (file, name, keywords)
        for file, tree in trees.items()
        for name, keywords in _calls(tree)
        if name in ARRAYS
    ]
    assert found
    for file, name, keywords in found:
        # Objects are refused unless something else is said.
        refused = keywords.get("allow_pickle", ast.Constant(value=False))
        assert isinstance(refused, ast.Constant), (file, name)
        assert refused.value is False, (file, name)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.getcwd []", "!!python/name:os.getcwd", "!!python/module:os"]
)
def test_yaml_makes_nothing_but_values(tag: str) -> None:
    with pytest.raises(ValueError, match="python"):
        yaml_documents.load(f"a: {tag}")


def test_messages_of_the_broker_are_json_alone() -> None:
    conf = celery_app("redis://127.0.0.1:1/0").conf
    assert (list(conf.accept_content), conf.task_serializer) == (["json"], "json")
