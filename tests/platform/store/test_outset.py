"""Queries of a submission: they take most of its time."""

from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedcore.platform.store import Database, experiments, progress
from fedcore.platform.store.experiments import NewExperiment
from tests.documents import specification
from tests.platform.store.acts import ONE_RUN


def test_a_submission_takes_three_statements_and_says_how_it_stands(database: Database) -> None:
    executed: list[str] = []
    with database.transaction() as session:
        session.connection()

        def note(*given: object) -> None:
            executed.append(str(given[2]).split("(")[0].strip())

        event.listen(Engine, "before_cursor_execute", note)
        try:
            made = experiments.create(
                session,
                NewExperiment(specification(ONE_RUN, seeds=list(range(50))), owner="ann", key_id="key_a"),
            )
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert made.overview == progress.overview(session, made.record.id)
    assert [statement.split()[0] for statement in executed] == ["SELECT", "INSERT", "INSERT"]
    assert [statement.split()[-1] for statement in executed[1:]] == ["experiment", "run"]
