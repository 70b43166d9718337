"""The database that `python -m bench scale` fills is one that users and workers could have filled."""

from contextlib import closing

import pytest
from sqlalchemy import func, select

from bench.scale.claims import simulated_claims
from bench.scale.fill import RUNS, Sizes, fill
from fedcore.platform.store import Status, curves, open_database
from fedcore.platform.store.tables import ExperimentRecord, RunRecord

ROUNDS = 200


@pytest.mark.nightly
def test_a_filled_database_has_what_it_says(postgresql_url: str) -> None:
    filled = fill(postgresql_url, Sizes(owners=3, experiments=7, rounds=ROUNDS))
    assert len(filled.tokens) == 3
    owner, status = ExperimentRecord.owner, ExperimentRecord.status
    with closing(open_database(postgresql_url)) as database, database.reading() as session:
        counted = select(status, owner, func.count()).group_by(status, owner).order_by(status, owner)
        queued, succeeded = Status.QUEUED, Status.SUCCEEDED
        assert [tuple(row) for row in session.execute(counted)] == [
            (queued, "owner-0", 2),
            (queued, "owner-1", 1),
            (queued, "owner-2", 1),
            (succeeded, "owner-0", 3),
            (succeeded, "owner-1", 2),
            (succeeded, "owner-2", 2),
        ]
        ended = RunRecord.status == Status.SUCCEEDED
        ids = session.scalars(select(RunRecord.id).where(ended)).all()
        assert len(ids) == 7 * RUNS
        found = curves.of_runs(session, ids, "train_loss")
        assert len({tuple(found[id].listed("train_loss")) for id in ids}) == 1
        assert [row.round for row in curves.after(session, ids[-1])] == list(range(1, ROUNDS + 1))
    for claims in simulated_claims(postgresql_url, workers=3, run_s=0.3):
        assert len(claims.seconds) == sum(claims.by_worker) > 0
