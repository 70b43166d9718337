"""Checks of the specification of any component."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import field_docstrings
from fedcore.testing.finding import CheckFailedError, Field, require
from fedcore.testing.subject import Subject

SLOW_MODULES = ("torch", "numpy")
_PROBE = """
import importlib, json, os, sys, traceback

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in %(slow)r:
            frames = [frame for frame in traceback.extract_stack() if frame.filename in %(files)r]
            place = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
            os.write(answer, json.dumps([name, *place]).encode())
            os._exit(0)

# What the module prints is not the answer.
answer = os.dup(1)
os.dup2(2, 1)
sys.path[:] = %(path)r
importlib.import_module("fedq.extensions")
sys.meta_path.insert(0, Refuse())
importlib.import_module(%(module)r)
"""


def the_example_is_valid(subject: Subject) -> None:
    """The class attribute `example`, with the kind, is a valid document."""
    try:
        subject.spec()
    except ValueError as error:
        raise CheckFailedError(
            "the class attribute `example` to hold every required field",
            " ".join(str(error).split()),
            "a field without default is missing in `example`, or has another name",
            subject.component,
        ) from error


def the_specification_round_trips(subject: Subject) -> None:
    """A specification read from its own JSON is equal, and its JSON Schema can be made."""
    spec = subject.spec()
    again = subject.known.model_validate_json(spec.model_dump_json())
    changed = next(
        (name for name in type(spec).model_fields if getattr(again, name) != getattr(spec, name)), ""
    )
    require(
        again == spec,
        "the specification to be equal after writing it as JSON and reading it",
        f"another value of `{changed}`: {getattr(again, changed, None)!r}",
        "a field whose type JSON cannot express; use numbers, strings, tuples and other blocks",
        Field(subject.component, changed),
    )
    subject.known.model_json_schema()


def everything_is_documented(subject: Subject) -> None:
    """The class and each of its fields have a docstring; algorithms name their source."""
    component = subject.component
    require(
        (component.__dict__.get("__doc__") or "").strip(),
        "a docstring of the class, which becomes its page in the reference",
        "none",
        "the docstring is missing",
        component,
    )
    readable, described = _source_file(component) is not None, field_docstrings(component)
    for name, field in component.model_fields.items():
        require(
            name == "kind" or not readable or (field.description or described.get(name, "")).strip(),
            f"a docstring below the field `{name}`, which becomes its description in the reference",
            "none",
            "the docstring is missing, or stands above the field",
            Field(component, name),
        )
    wanted = ("source", "fixed_point") if issubclass(component, AlgorithmSpec) else ()
    for name in wanted:
        require(
            isinstance(getattr(component, name, None), str),
            f"a class attribute `{name}` with a text",
            "none",
            "the attribute is missing: `source` is the publication (or 'unpublished'), `fixed_point` where"
            " the algorithm converges on quadratics",
            component,
        )


def importing_it_loads_no_tensor_library(subject: Subject) -> None:
    """A fresh interpreter imports the module without PyTorch and NumPy."""
    module = subject.component.__module__
    file = _source_file(subject.component)
    if file is None or module == "__main__":
        return
    loaded = _loaded(module, file)
    if loaded is None:
        return
    name, place, line = loaded
    raise CheckFailedError(
        "specifications to be read without PyTorch and NumPy, which services do not load",
        f"importing {module} imports {name}",
        f"`import {name}` at the head of a module; use `from fedq.extensions import np, torch`, which are"
        " imported on first use",
        (place or file, line),
    )


def _source_file(component: type) -> str | None:
    """File of the component's module; None where it was defined in a notebook."""
    return getattr(sys.modules.get(component.__module__), "__file__", None)


@lru_cache(maxsize=256)
def _loaded(module: str, file: str) -> tuple[str, str | None, int | None] | None:
    """The first slow module that importing `module` imports, with file and line; None if it is none."""
    files = [str(path) for path in Path(file).parent.rglob("*.py")] if "fedcore" not in module else [file]
    probe = _PROBE % {"slow": SLOW_MODULES, "files": files, "path": sys.path, "module": module}
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise CheckFailedError(
            f"{module} to be imported in a fresh interpreter",
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message",
            "the module relies on something that another one has done",
        )
    found: Any = json.loads(done.stdout) if done.stdout else None
    return None if found is None else (found[0], found[1], found[2])


SPECIFICATION = (
    the_example_is_valid,
    the_specification_round_trips,
    everything_is_documented,
    importing_it_loads_no_tensor_library,
)
