"""How a plan would fare with the service as it stands: who would carry it out, how long that would
take, what would be in its way.
"""

from fedcore.platform.access import Principal
from fedcore.platform.store import Database, quotas, service_metrics, wait_reasons, workers
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedq.schemas import Plan


def add_service_estimates(
    plan: Plan, spec: ExperimentSpec, database: Database, settings: Settings, principal: Principal
) -> Plan:
    """`plan`, which is of `spec`, with its time, its workers and its warnings."""
    queue, seen_s = spec.execution.queue, settings.seen_seconds
    with database.reading() as session:
        obstacles = wait_reasons.obstacles(session, queue, plan.memory_bytes, seen_s)
        excess = quotas.violations(session, principal.key_id, plan.runs)
        serving = sum(queue in worker.queues for worker in workers.alive(session, seen_s))
        step_s = service_metrics.seconds_per_step(session, plan.specification, principal.sees)
    return plan.model_copy(
        update={"warnings": [*obstacles, *excess], "workers": serving, "seconds": _seconds(plan, step_s)}
    )


def _seconds(plan: Plan, step_s: float | None) -> float | None:
    if step_s is None:
        return None
    played = plan.search.rounds / plan.rounds if plan.search else 1.0
    return step_s * plan.local_steps * played
