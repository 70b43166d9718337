"""Sends webhook deliveries, on threads of the reconciler's process.

Several processes may do so at once: each delivery is leased by one of them. A slow receiver delays
only its own deliveries: of a webhook one delivery is sent at a time, of an owner a few.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import structlog

from fedcore.platform.store import UNAVAILABLE, Database, webhook_deliveries
from fedcore.platform.store.webhook_deliveries import ClaimedDelivery
from fedcore.platform.webhooks.protocol import ReceiverResponse, sign_message
from fedcore.platform.webhooks.sending import send
from fedcore.platform.webhooks.urls import Resolve, resolve
from fedcore.settings import Settings

PERIOD_S = 1.0
THREADS, OF_ONE_OWNER = 16, 4
TIMEOUT_S = 10.0
"""Longest attempt, without the time for the system's resolver; it is retried later."""
RESOLVING_S = 60.0
"""Time for the system's resolver, added to the timeout of a delivery: the lease of a delivery."""

log = structlog.stdlib.get_logger(__name__)


class WebhookDispatcher:
    """Sends the deliveries that are due, on threads of its own."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        look_up: Resolve = resolve,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`look_up` resolves host names; `timeout_s` ends an attempt."""
        self._database, self._look_up, self._timeout_s = database, look_up, timeout_s
        self._allowed = settings.webhook_networks
        self._busy: dict[str, str] = {}  # owners by webhook
        self._lock, self._awake = threading.Lock(), threading.Event()

    def run(self, ended: threading.Event) -> None:
        """Dispatch every second, and whenever a delivery was sent, until `ended`; then wait for those
        that are being sent.
        """
        with ThreadPoolExecutor(THREADS, "webhooks") as pool:
            while not ended.is_set():
                try:
                    self.dispatch_due(pool)
                except UNAVAILABLE as error:
                    log.warning("the database is away: %s", error)
                except Exception:
                    # What is due stays due.
                    log.exception("nothing was sent")
                self._awake.wait(PERIOD_S)
                self._awake.clear()

    def wake(self) -> None:
        """Dispatch at once, or end."""
        self._awake.set()

    def dispatch_due(self, pool: ThreadPoolExecutor) -> None:
        """Give a thread to each delivery that may be sent now, while there are threads."""
        with self._database.reading() as session:
            if not webhook_deliveries.any_due(session):
                return
        while (delivery := self._claim()) is not None:
            pool.submit(self._deliver, delivery)

    def _claim(self) -> ClaimedDelivery | None:
        with self._lock:
            busy = dict(self._busy)
        if len(busy) >= THREADS:
            return None
        owners = [owner for owner, count in Counter(busy.values()).items() if count >= OF_ONE_OWNER]
        lease_s = self._timeout_s + RESOLVING_S
        with self._database.transaction() as session:
            delivery = webhook_deliveries.claim_due(session, lease_s, besides=list(busy), not_of=owners)
        if delivery is not None:
            with self._lock:
                self._busy[delivery.webhook_id] = delivery.owner
        return delivery

    def _deliver(self, delivery: ClaimedDelivery) -> None:
        try:
            response = self._send(delivery)
            with self._database.transaction() as session:
                status = webhook_deliveries.record_attempt(session, delivery, response, random.random())  # noqa: S311 - it spreads retries, and hides nothing
            # Not the URL: it may hold a secret of its owner.
            log.info(
                "webhook delivery attempted",
                webhook_id=delivery.webhook_id,
                delivery_id=delivery.id,
                status=status,
                code=response.code,
                error=response.error,
            )
        except UNAVAILABLE as error:
            log.warning(
                "the database is away: %s; the delivery is sent again", error, delivery_id=delivery.id
            )
        except Exception:
            log.exception("a delivery was not sent", delivery_id=delivery.id)
        finally:
            with self._lock:
                del self._busy[delivery.webhook_id]
            self.wake()

    def _send(self, delivery: ClaimedDelivery) -> ReceiverResponse:
        headers = {"Content-Type": "application/json", "User-Agent": "FedQ-webhooks"}
        headers |= sign_message(delivery.id, delivery.moment, delivery.body, delivery.secret)
        return send(
            delivery.url,
            headers,
            delivery.body,
            allowed=self._allowed,
            resolve=self._look_up,
            timeout_s=self._timeout_s,
        )


@contextmanager
def dispatch_webhooks(database: Database, settings: Settings) -> Iterator[None]:
    """Send webhook deliveries, in threads, as long as the block lasts."""
    dispatcher, ended = WebhookDispatcher(database, settings), threading.Event()
    thread = threading.Thread(target=dispatcher.run, args=[ended], name="webhooks")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        dispatcher.wake()
        thread.join()
