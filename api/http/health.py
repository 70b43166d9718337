"""`/healthz` and `/readyz`: liveness and readiness."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response

from api.http.dependencies import DatabaseDep, SettingsDep
from fedcore.lazy import LazyModule
from fedcore.platform.store import Database, progress
from fedcore.platform.version import find_release
from fedq.schemas import Check, Health, Readiness

if TYPE_CHECKING:
    from workers import celery_app
else:
    celery_app = LazyModule("workers.celery_app")

router = APIRouter(tags=["operations"])

BROKER_TIMEOUT_S = 2.0


@router.get("/healthz", summary="Liveness")
async def read_health() -> Health:
    """Check that the process responds."""
    return Health(version=find_release())


@router.get(
    "/readyz",
    responses={503: {"model": Readiness, "description": "The database is unavailable."}},
    summary="Readiness",
)
def read_readiness(database: DatabaseDep, settings: SettingsDep, response: Response) -> Readiness:
    """Check database and broker.

    Without the broker, requests are still served, but runs start a little later.
    """
    checks = {
        "database": _check(lambda: _ask_database(database)),
        "broker": _check(lambda: _ask_broker(settings.broker)),
    }
    if not checks["database"].ok:
        response.status_code = 503
        return Readiness(status="unready", checks=checks)
    return Readiness(status="ready" if checks["broker"].ok else "degraded", checks=checks)


def _check(ask: Callable[[], str]) -> Check:
    try:
        return Check(ok=True, detail=ask())
    except Exception as error:
        return Check(
            ok=False, detail=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )


def _ask_database(database: Database) -> str:
    with database.reading() as session:
        progress.queue_depths(session)
    return database.url.get_backend_name()


def _ask_broker(url: str) -> str:
    with celery_app.celery_app(url).connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_TIMEOUT_S)
        return str(connection.transport.driver_type)
