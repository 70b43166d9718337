"""Calls of the client, each written once: a coroutine, or an asynchronous generator for lists."""

from fedq.client.calls.datasets import DatasetCalls
from fedq.client.calls.exports import ExportCalls
from fedq.client.calls.keys import KeyCalls
from fedq.client.calls.offers import OfferCalls
from fedq.client.calls.webhooks import WebhookCalls

__all__ = ["AllCalls", "WebhookCalls"]


class AllCalls(ExportCalls, DatasetCalls, OfferCalls, KeyCalls):
    """Everything but webhooks, which have names of their own."""
