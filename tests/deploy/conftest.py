"""The compose file, as Compose would read it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PASSWORD = "letters0and1digits"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")


@pytest.fixture(scope="session")
def services() -> dict[str, Any]:
    """The services, with variables filled in and YAML's aliases and merges resolved."""
    text = VARIABLE.sub(lambda found: found[2] or PASSWORD, (ROOT / "docker-compose.yml").read_text())
    return yaml.safe_load(text)["services"]


@pytest.fixture(scope="session")
def ours(services: dict[str, Any]) -> dict[str, Any]:
    """Those of the services that run FedQ."""
    return {name: service for name, service in services.items() if service["image"].startswith("fedq-")}


@pytest.fixture(scope="session")
def image_settings() -> dict[str, str]:
    """The settings that every image has."""
    return dict(re.findall(r"\b(FEDQ_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))
