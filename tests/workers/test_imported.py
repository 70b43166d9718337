"""Models by import path on a worker."""

from fedcore.platform.store import Status
from tests.builders.specifications import SYNTHETIC, merged
from tests.workers.deployment import Deployment

DOCUMENT = SYNTHETIC | {
    "problem": {
        **SYNTHETIC["problem"],
        "model": {"kind": "import", "path": "tests.models.factories:plain", "parameters": 610},
    }
}


def test_a_worker_trains_what_it_allows_and_refuses_the_rest_at_once(embedded: Deployment) -> None:
    built_in = embedded.submit(merged(SYNTHETIC, {}), nudge=False)
    refused = embedded.submit(DOCUMENT, nudge=False)
    with embedded.runner() as runner:
        runner.work()
    run = embedded.run(refused)
    assert (run.status, run.attempts, "FEDQ_MODELS_ALLOWED" in (run.error or "")) == (Status.FAILED, 1, True)
    allowed = embedded.submit(DOCUMENT, nudge=False)
    with embedded.with_settings(models_allowed="tests.models.*").runner() as runner:
        runner.work()
    losses = [[row.train_loss for row in embedded.rows(embedded.run(id).id)] for id in (built_in, allowed)]
    assert losses[0] == losses[1] != []
