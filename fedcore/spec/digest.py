"""Digests of specifications and of result files."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

WORDS = ("name", "description", "tags")
"""Fields of a specification that are for people."""
PLACE = ("queue", "priority")
"""Fields of `execution` that say where and when."""


def specification_sha256(document: Mapping[str, Any]) -> str:
    """SHA-256 over a validated specification, every default written out, without WORDS and PLACE,
    as canonical JSON.

    Canonical: UTF-8, keys sorted, no white space, numbers as Python's json writes them. Arms whose
    sweep names its paths in another order are other arms, so `sweep` is a list of pairs here. `code` is its
    digest: the id of a bundle differs between services.
    """
    asked = {name: value for name, value in document.items() if name not in WORDS}
    asked["execution"] = {
        name: value for name, value in document.get("execution", {}).items() if name not in PLACE
    }
    if document.get("code"):
        asked["code"] = document["code"]["digest"]
    if document.get("sweep"):
        asked["sweep"] = list(document["sweep"].items())
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def results_sha256(document: Mapping[str, Any]) -> str:
    """SHA-256 over a file of results, without its `digest` and its `code`, whose own digest the
    specification has: as JSON in the order of the file, no white space, UTF-8.
    """
    told = {name: value for name, value in document.items() if name not in ("digest", "code")}
    return hashlib.sha256(json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
