"""A worker that only commits: claims runs in the store and writes slices of rows without training.

    python -m bench.load.writer DATABASE_URL QUEUE RUNS ROUNDS SLICE PAUSE_S

claims RUNS runs of QUEUE, prints `ready`, waits for a line on its standard input, and plays each
run to its end, SLICE of its ROUNDS per commit, PAUSE_S seconds between the commits of a run. Then
it prints, as JSON, when it began and ended and when each commit was requested.
"""

import json
import math
import sys
import time
from contextlib import closing

from fedcore.platform.store import Database, WorkerDirective, open_database, runs
from fedcore.platform.store.leases import Claim, Claimant
from fedcore.simulation.report import RoundReport

LEASE_S = 120.0
PROVENANCE = {"engine": "compiled", "device": "cpu"}


def main() -> None:
    """Claim, wait, write, report."""
    url, queue, *numbers = sys.argv[1:]
    count, rounds, size = map(int, numbers[:3])
    with closing(open_database(url)) as database:
        held = [_claim(database, queue) for _ in range(count)]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        written = _write(database, held, rounds, size, float(numbers[3]))
    sys.stdout.write(json.dumps(written) + "\n")


def _claim(database: Database, queue: str) -> Claim:
    with database.transaction() as session:
        claim = runs.claim(session, Claimant(f"writer-{queue}-{time.time_ns()}", (queue,)), LEASE_S)
    assert claim is not None, f"no run waits in {queue}"
    return claim


def _write(
    database: Database, held: list[Claim], rounds: int, size: int, pause_s: float
) -> dict[str, object]:
    commits: list[tuple[str, int, float]] = []
    began = time.time()
    for tick, first in enumerate(range(0, rounds, size)):
        for place, claim in enumerate(held):
            # Spread over the pause: workers do not commit at one moment.
            time.sleep(max(0.0, began + (tick + place / len(held)) * pause_s - time.time()))
            reports = [report(first + step) for step in range(1, min(size, rounds - first) + 1)]
            done, commit = first + len(reports), time.time()
            checkpoint = f"{claim.run_id}/{done}-{claim.fence}"
            with database.transaction() as session:
                control = runs.commit_slice(
                    session, claim, reports, checkpoint=checkpoint, lease_s=LEASE_S, provenance=PROVENANCE
                )
            assert control in (WorkerDirective.CONTINUE, WorkerDirective.YIELD), control
            commits.append((claim.run_id, done, commit))
            held[place] = claim.at(done, checkpoint)
    ended = time.time()
    for claim in held:
        with database.transaction() as session:
            runs.finish(session, claim, model=None, provenance=PROVENANCE)
    return {"began": began, "ended": ended, "commits": commits}


def report(round: int) -> RoundReport:
    """Return the report of a run with an evaluation in every round."""
    loss = math.exp(-round / 100)
    extra = {
        "gradient_diversity": 1.0 + loss,
        "test_accuracy_min": 0.5 - loss / 4,
        "simulated_s": 2.5 * round,
    }
    return RoundReport(0, 0, round, 120, 31_400, 31_400, 0.01, loss, 1.1 * loss, 0.9 - loss / 2, extra)


if __name__ == "__main__":
    main()
