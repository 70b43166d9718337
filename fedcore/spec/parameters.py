"""Parameters: all settings of an arm as flat values by dotted path, which tables have as columns and
tracking tools as hyperparameters.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedcore.spec import sweep

if TYPE_CHECKING:
    from fedcore.spec.experiment import Arm, ExperimentSpec

Value = str | bool | int | float
Parameters = dict[str, Value]

NO_PARAMETERS = frozenset({"name", "description", "tags", "seeds", "sweep", "search"})
"""Fields of a specification that say nothing about what a run computes, or differ between the runs of
an arm.
"""
LONGEST_TEXT = 200
"""Maximum length of a text in tables, in characters: longer ones, such as a matrix or a trace, are
left out.
"""


class ArmParameters(NamedTuple):
    """Parameters of some arms of an experiment."""

    common: Parameters
    """Parameters that neither the sweep nor a study changes."""
    arms: list[Parameters]
    """The other parameters, arm by arm."""


def parameters_of(spec: "ExperimentSpec", arms: Sequence["Arm"]) -> ArmParameters:
    """Return the parameters of these arms of `spec`.

    A setting that a study has not proposed yet is missing from its trial.
    """
    # Clients use this module, too, and load no specification.
    from fedcore.spec.search import Study

    space = spec.search.space if isinstance(spec.search, Study) else {}
    changed = {path.partition(".")[0] for path in {*sweep.list_paths(spec.sweep), *space}}
    fields = [name for name in type(spec).model_fields if name not in NO_PARAMETERS]
    # Arms share the blocks that the sweep does not lead into, and most arms those of others.
    flat: dict[tuple[str, int], Parameters] = {}

    def field(of: "ExperimentSpec", name: str) -> Parameters:
        key = name, id(getattr(of, name))
        if key not in flat:
            flat[key] = _short(flatten_document(of.model_dump(mode="json", include={name})))
        return flat[key]

    def own(arm: "Arm") -> Parameters:
        values = {
            path: value for name in fields if name in changed for path, value in field(arm.spec, name).items()
        }
        if space:
            values = {path: value for path, value in values.items() if not _below(path, space)}
            values |= _short(
                entry for path, value in arm.settings.items() for entry in flatten_document(value, path)
            )
        return values

    common = {
        path: value for name in fields if name not in changed for path, value in field(spec, name).items()
    }
    return ArmParameters(common, [own(arm) for arm in arms])


def flatten_document(document: Any, path: str = "") -> Iterator[tuple[str, Value]]:
    """Values of a document by dotted path, with indexes for lists of blocks. A list of numbers or
    strings is a single value, as JSON.
    """
    if isinstance(document, Mapping):
        entries = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list) and any(isinstance(entry, Mapping | list) for entry in document):
        entries = [(str(place), entry) for place, entry in enumerate(document)]
    else:
        entries = []
        if document is not None:
            yield path, document if isinstance(document, Value) else json.dumps(document)
    for name, value in entries:
        yield from flatten_document(value, f"{path}.{name}" if path else name)


def _short(entries: Iterator[tuple[str, Value]]) -> Parameters:
    return {
        path: value for path, value in entries if not (isinstance(value, str) and len(value) > LONGEST_TEXT)
    }


def _below(path: str, space: Mapping[str, Any]) -> bool:
    return any(path == other or path.startswith(f"{other}.") for other in space)
