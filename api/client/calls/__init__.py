"""What a service can be asked: each call written once, as a coroutine, or as an asynchronous generator where it lists something."""

from api.client.calls.datasets import DatasetCalls
from api.client.calls.exports import ExportCalls
from api.client.calls.keys import KeyCalls
from api.client.calls.offers import OfferCalls
from api.client.calls.webhooks import WebhookCalls

__all__ = ["AllCalls", "WebhookCalls"]


class AllCalls(ExportCalls, DatasetCalls, OfferCalls, KeyCalls):
    """Everything but webhooks, which have names of their own."""
