"""What the service answers with: one model per resource."""

from api.schemas.audits import AuditEntry, AuditPage
from api.schemas.base import Answer
from api.schemas.catalog import Catalog, CatalogBlock, Kind, Preset, PresetList, PresetSummary
from api.schemas.claims import ClaimResult, Claims, ComparisonResult, PublishedRow, PublishedTable
from api.schemas.datasets import ClientSizes, Dataset, DatasetPage
from api.schemas.events import DecisionEvent, HeartbeatEvent, RoundEvent, StatusEvent
from api.schemas.experiments import (
    ArmPlan,
    ArmSummary,
    Experiment,
    ExperimentEdit,
    ExperimentPage,
    ExperimentSummary,
    Plan,
    Progress,
    SearchPlan,
    Stretch,
)
from api.schemas.keys import Key, KeyEdit, KeyPage, KeyRequest, KeyStanding, KeyUsage, Me, NewKey
from api.schemas.operations import Check, Health, QueueDepth, Queues, Readiness, Worker, Workers
from api.schemas.problems import Flaw, ProblemDetails
from api.schemas.reproductions import MadeOtherwise, Outcome, Reproduction, RunDifference
from api.schemas.results import ArmResult, ArmTheory, Curve, Difference, Estimate, Law, MetricResult, Results, Theory
from api.schemas.runs import MetricsPage, RoundRow, Run, RunPage
from api.schemas.search import ArmArrival, SearchPage
from api.schemas.webhooks import Attempt, Delivery, DeliveryPage, NewWebhook, Webhook, WebhookEdit, WebhookPage, WebhookRequest

__all__ = [
    "Answer",
    "ArmArrival",
    "ArmPlan",
    "ArmResult",
    "ArmSummary",
    "ArmTheory",
    "Attempt",
    "AuditEntry",
    "AuditPage",
    "Catalog",
    "CatalogBlock",
    "Check",
    "ClaimResult",
    "Claims",
    "ClientSizes",
    "ComparisonResult",
    "Curve",
    "Dataset",
    "DatasetPage",
    "DecisionEvent",
    "Delivery",
    "DeliveryPage",
    "Difference",
    "Estimate",
    "Experiment",
    "ExperimentEdit",
    "ExperimentPage",
    "ExperimentSummary",
    "Flaw",
    "Health",
    "HeartbeatEvent",
    "Key",
    "KeyEdit",
    "KeyPage",
    "KeyRequest",
    "KeyStanding",
    "KeyUsage",
    "Kind",
    "Law",
    "MadeOtherwise",
    "Me",
    "MetricResult",
    "MetricsPage",
    "NewKey",
    "NewWebhook",
    "Outcome",
    "Plan",
    "Preset",
    "PresetList",
    "PresetSummary",
    "ProblemDetails",
    "Progress",
    "PublishedRow",
    "PublishedTable",
    "QueueDepth",
    "Queues",
    "Readiness",
    "Reproduction",
    "Results",
    "RoundEvent",
    "RoundRow",
    "Run",
    "RunDifference",
    "RunPage",
    "SearchPage",
    "SearchPlan",
    "StatusEvent",
    "Stretch",
    "Theory",
    "Webhook",
    "WebhookEdit",
    "WebhookPage",
    "WebhookRequest",
    "Worker",
    "Workers",
]
