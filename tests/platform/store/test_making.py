"""Orders stored together: each comes to what it would come to alone."""

from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedcore.errors import IdempotencyError, QuotaError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, experiments, keys, progress
from fedcore.platform.store.quotas import Quota
from fedcore.platform.store.submissions import CreatedExperiment, NewExperiment, create_all
from tests.documents import specification
from tests.platform.store.acts import ONE_RUN, read, write


def order(name: str, **asked: object) -> NewExperiment:
    return NewExperiment(specification(ONE_RUN, name=name), **asked)  # type: ignore[arg-type]


def names(database: Database) -> list[str]:
    return sorted(record.name for record in read(database, experiments.page).items)


def limited(database: Database, owner: str, waiting_runs: int) -> str:
    """A key under which so many runs may wait; its id."""
    return write(
        database, keys.create, owner=owner, scope=Scope.SUBMIT, quota=Quota(waiting_runs=waiting_runs)
    )[0].id


def test_many_take_as_many_statements_as_one(database: Database) -> None:
    executed: list[str] = []
    orders = [
        order(f"of {place}", owner=f"owner-{place % 5}", key_id=f"key_{place % 5}") for place in range(20)
    ]
    with database.transaction() as session:
        session.connection()

        def note(*given: object) -> None:
            executed.append(str(given[2]).split()[0])

        event.listen(Engine, "before_cursor_execute", note)
        try:
            made = create_all(session, orders)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert executed == ["SELECT", "INSERT", "INSERT"]
    for asked, one in zip(orders, made, strict=True):
        assert isinstance(one, CreatedExperiment)
        kept = read(database, experiments.find, one.record.id, asked.owner)
        assert (kept.name, kept.spec) == (asked.spec.name, asked.spec.model_dump(mode="json"))
        assert one.overview == read(database, progress.overview, kept.id)


def test_of_two_under_one_idempotency_key_only_the_first_is_made_and_both_are_answered_with_it(
    database: Database,
) -> None:
    first, other, again = write(
        database, create_all, [order("a", idempotency_key="k"), order("b"), order("a", idempotency_key="k")]
    )
    assert isinstance(first, CreatedExperiment)
    assert isinstance(again, CreatedExperiment)
    assert first.record.id == again.record.id
    assert isinstance(other, CreatedExperiment)
    assert names(database) == ["a", "b"]


def test_another_request_under_a_used_key_fails_alone(database: Database) -> None:
    before = write(database, experiments.create, order("a", idempotency_key="k")).record.id
    together = [
        order("b"),
        order("c", idempotency_key="k"),
        order("a", idempotency_key="k"),
        order("d", owner="ann", idempotency_key="k"),
    ]
    *made, refused = sorted(
        write(database, create_all, together), key=lambda one: isinstance(one, IdempotencyError)
    )
    assert isinstance(refused, IdempotencyError)
    assert before in {one.record.id for one in made if isinstance(one, CreatedExperiment)}
    assert names(database) == ["a", "b", "d"]


def test_what_is_more_than_a_key_may_have_fails_alone_and_leaves_its_idempotency_key_free(
    database: Database,
) -> None:
    narrow, wide = limited(database, "ann", 2), limited(database, "bob", 9)
    together = [
        *(
            order(f"ann {place}", owner="ann", key_id=narrow, idempotency_key=f"{place}")
            for place in range(4)
        ),
        *(order(f"bob {place}", owner="bob", key_id=wide) for place in range(4)),
        order("nobody's"),
    ]
    made = write(database, create_all, together)
    assert [str(one) for one in made if isinstance(one, QuotaError)] == [
        "quota max_waiting_runs exceeded: 3 queued or paused runs, limit 2; cancel some or wait"
    ] * 2
    assert names(database) == ["ann 0", "ann 1", *(f"bob {place}" for place in range(4)), "nobody's"]
    changed = order("ann again", owner="ann", idempotency_key="3")
    assert isinstance(write(database, experiments.create, changed), CreatedExperiment)
