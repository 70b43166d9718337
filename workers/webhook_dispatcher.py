"""The sender: takes up what webhooks are to be told, and sends it.

Threads of the reconciler's process.

Several may run at once, in as many processes: each delivery is sent by one of them. A receiver that
is slow holds up nothing but what is for itself: of a webhook one delivery is under way at a time,
of an owner a few, and reconciling has a thread of its own.
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
from fedcore.platform.webhooks.protocol import ReceiverResponse, signed
from fedcore.platform.webhooks.sending import send
from fedcore.platform.webhooks.urls import AddressRules, Resolve, resolve
from fedcore.settings import Settings

PERIOD_S = 1.0
THREADS, OF_ONE_OWNER = 16, 4
RESOLVING_S = 60.0
"""The system's resolver is given so long beside the timeout of a delivery; then another sender may
take it up.
"""
PRUNE_EVERY_S = 600.0

log = structlog.stdlib.get_logger(__name__)


class WebhookDispatcher:
    """Sends what is due, on threads of its own; `look_up` is the resolver of names."""

    def __init__(self, database: Database, configured: Settings, look_up: Resolve = resolve) -> None:
        self._database, self._settings, self._look_up = database, configured, look_up
        self._rules = AddressRules(configured.webhook_networks, configured.webhook_http)
        self._busy: dict[str, str] = {}  # owners by webhook
        self._lock, self._news = threading.Lock(), threading.Event()

    def run(self, ended: threading.Event) -> None:
        """Look every second, and whenever something was sent, until `ended`.

        What is under way by then is waited for.
        """
        pruned = PRUNE_EVERY_S
        with ThreadPoolExecutor(THREADS, "webhooks") as pool:
            while not ended.is_set():
                try:
                    self.dispatch_due(pool)
                    pruned = self._prune(pruned)
                except UNAVAILABLE as error:
                    log.warning("the database is away: %s", error)
                except Exception:
                    # Whatever it is, what is due stays due.
                    log.exception("nothing was sent")
                pruned += PERIOD_S
                self._news.wait(PERIOD_S)
                self._news.clear()

    def wake(self) -> None:
        """Look at once, also whether it has ended."""
        self._news.set()

    def dispatch_due(self, pool: ThreadPoolExecutor) -> None:
        """Give a thread to each delivery that may be sent now, as far as there are threads."""
        with self._database.reading() as session:
            if not webhook_deliveries.any_due(session):
                return
        while (delivery := self._take()) is not None:
            pool.submit(self._deliver, delivery)

    def _take(self) -> ClaimedDelivery | None:
        with self._lock:
            busy = dict(self._busy)
        if len(busy) >= THREADS:
            return None
        owners = [owner for owner, count in Counter(busy.values()).items() if count >= OF_ONE_OWNER]
        lease_s = self._settings.webhook_timeout_seconds + RESOLVING_S
        with self._database.transaction() as session:
            delivery = webhook_deliveries.claim_due(session, lease_s, besides=list(busy), not_of=owners)
        if delivery is not None:
            with self._lock:
                self._busy[delivery.webhook_id] = delivery.owner
        return delivery

    def _deliver(self, delivery: ClaimedDelivery) -> None:
        try:
            answer = self._send(delivery)
            with self._database.transaction() as session:
                status = webhook_deliveries.record_attempt(session, delivery, answer, random.random())  # noqa: S311 - it spreads retries, and hides nothing
            # Not the URL: it may hold what only its owner is to know.
            log.info(
                "webhook told",
                webhook_id=delivery.webhook_id,
                delivery_id=delivery.id,
                status=status,
                code=answer.code,
                error=answer.error,
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
        headers |= signed(delivery.id, delivery.moment, delivery.body, delivery.secrets)
        timeout_s = self._settings.webhook_timeout_seconds
        return send(
            delivery.url,
            headers,
            delivery.body,
            rules=self._rules,
            resolve=self._look_up,
            timeout_s=timeout_s,
        )

    def _prune(self, since_s: float) -> float:
        """Forget what is old, if it is time; the seconds since it was last done."""
        if since_s < PRUNE_EVERY_S:
            return since_s
        with self._database.transaction() as session:
            webhook_deliveries.prune(session, self._settings.webhook_retention_days * 86_400)
        return 0.0


@contextmanager
def dispatching(database: Database, configured: Settings) -> Iterator[None]:
    """Send, in threads beside the block, as long as it lasts."""
    sender, ended = WebhookDispatcher(database, configured), threading.Event()
    thread = threading.Thread(target=sender.run, args=[ended], name="sender")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        sender.wake()
        thread.join()
