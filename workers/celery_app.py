"""The message queue: the one kind of message, a wake-up, and how to send it.

A message says only that runs may be queued; the database knows which, if any. So a message may be
lost, doubled or late without harm. It never expires, which would be judged by the clocks of two
machines.
"""

import logging
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import uuid4

from celery import Celery
from kombu.entity import Queue

WAKEUP_TASK = "fedq.wake"
"""The one task: execute queued runs."""
MAX_TASK_SECONDS = 3_600.0
"""A task ends after about this long even if runs are queued; the next message begins another."""
_ROUND_LIMIT_S = 6 * 3_600.0
"""A single round may take this long before its process is considered to hang, and killed."""
_UNUSED_S = 3_600.0
_BROKER_TIMEOUT_S = 2.0
"""A broker that is silent for this long is considered to be away."""

log = logging.getLogger(__name__)


def send_wakeup(queue: str | Queue, broker: str) -> bool:
    """Wake a worker of `queue` through `broker`, a URL; False when the broker cannot be reached.

    Never raises. It waits some seconds for a broker that is away, longer for one that answers
    slowly: see `fedcore.platform.wakeups`.
    """
    app = celery_app(broker)
    try:
        name = queue_name(queue) if isinstance(queue, str) else queue
        app.send_task(WAKEUP_TASK, queue=name, retry=False, ignore_result=True)
    except Exception as error:
        log.warning("no worker of queue %r was woken: %s: %s", str(queue), type(error).__name__, error)
        return False
    return True


def queue_name(queue: str) -> str:
    """Name of a queue of specifications at the broker."""
    return f"fedq.{queue}"


def own_queue() -> Queue:
    """Create the queue of one worker, which the broker removes when it has been unused for an hour."""
    # Without an exchange, no binding stays behind. Queues of specifications have no dot in their
    # names.
    return Queue(f"fedq.worker.{uuid4().hex}", expires=_UNUSED_S)  # type: ignore[no-untyped-call]


@cache
def celery_app(broker: str) -> Celery:
    """Configure Celery for the broker at this URL; it connects on first use.

    `redis://host`, `rediss://host`, `redis+socket:///path`, `amqp://host`, or
    `filesystem:///folder` where nothing else is available.
    """
    app = Celery("fedq", set_as_current=False)
    app.conf.update(
        **_broker_settings(broker),
        broker_connection_timeout=_BROKER_TIMEOUT_S,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        task_time_limit=MAX_TASK_SECONDS + _ROUND_LIMIT_S,
        accept_content=["json"],
        task_serializer="json",
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=broker.startswith("redis"),
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=True,
        worker_redirect_stdouts=False,
        # The child imports the tensor library before it reports for duty.
        worker_proc_alive_timeout=120.0,
    )
    return app


def _broker_settings(broker: str) -> dict[str, Any]:
    scheme = urlparse(broker).scheme
    if scheme == "filesystem":
        return _folder_broker(Path(unquote(urlparse(broker).path)))
    if scheme.startswith("redis"):
        options = {
            "socket_timeout": _BROKER_TIMEOUT_S,
            "socket_connect_timeout": _BROKER_TIMEOUT_S,
            "socket_keepalive": True,
        }
    else:
        options = {"read_timeout": _BROKER_TIMEOUT_S, "write_timeout": _BROKER_TIMEOUT_S}
    return {"broker_url": broker, "broker_transport_options": options | {"max_retries": 0}}


def _folder_broker(folder: Path) -> dict[str, Any]:
    messages = folder / "messages"
    messages.mkdir(parents=True, exist_ok=True)
    places = {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(folder / "control"),
    }
    return {"broker_url": "filesystem://", "broker_transport_options": {**places, "polling_interval": 0.05}}
