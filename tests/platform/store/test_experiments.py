"""Experiments: made once, found, listed page by page, edited, deleted with all that is theirs."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, func, insert, inspect, select, text

from fedcore.errors import IdempotencyError, QuotaError, ResourceNotFoundError, StaleLeaseError
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, Session, Status, experiments, keys, runs, sharing
from fedcore.platform.store.experiments import Filter, NewExperiment
from fedcore.platform.store.tables import Base, ExperimentRecord, TagRecord
from tests.builders.claims import claim, commit, commit_slice, fail, finish
from tests.builders.experiments import run_of, runs_of, submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import on_postgresql, read, retried, write

SWEPT: dict[str, Any] = {
    "seeds": [7, 3],
    "sweep": {"local.lr": [0.1, 0.05], "algorithm.kind": ["fedavg", "scaffold"]},
}


def post(database: Database, key: str, *, owner: str = "ann", name: str = "one run") -> str:
    """Create under an idempotency key; the experiment's id."""
    made = write(
        database,
        experiments.create,
        NewExperiment(specification(ONE_RUN, name=name), owner=owner, idempotency_key=key, request_hash=name),
    ).record
    return made.id


def ids(database: Database, **filters: Any) -> list[str]:
    """The ids on the first page of a listing."""
    return [item.id for item in read(database, experiments.page, Filter(**filters)).items]


def pages(database: Database, limit: int, **filters: Any) -> Iterator[list[str]]:
    """The ids on each page of a listing, each page read when it is asked for."""
    cursor = None
    while True:
        page = read(database, experiments.page, Filter(**filters), limit=limit, cursor=cursor)
        yield [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            return


def counts(session: Session) -> dict[str, int]:
    """The number of rows of each table, but for those of what has happened and of what is to be
    removed.
    """
    tables = {
        name: table
        for name, table in Base.metadata.tables.items()
        if name not in ("tally", "share", "storage_removal")
    }
    return {
        name: session.scalars(select(func.count()).select_from(table)).one() for name, table in tables.items()
    }


def test_an_experiment_has_a_queued_run_for_each_arm_and_seed(database: Database) -> None:
    experiment = submit(
        database,
        owner="ann",
        name="four arms",
        tags=["b", "a"],
        execution={"queue": "gpu", "priority": 8},
        **SWEPT,
    )
    found = runs_of(database, experiment)
    assert [(run.arm, run.seed) for run in found] == [(arm, seed) for arm in range(4) for seed in (7, 3)]
    assert found[2].settings == {"local.lr": 0.1, "algorithm.kind": "scaffold"}
    assert list(found[2].settings) == list(SWEPT["sweep"])
    for run in found:
        assert (run.status, run.done, run.rounds, run.queue, run.priority, run.owner) == (
            Status.QUEUED,
            0,
            4,
            "gpu",
            8,
            "ann",
        )


def test_an_experiment_is_found_as_it_was_submitted(database: Database) -> None:
    experiment = submit(database, owner="ann", description="why", tags=["b", "a"], **SWEPT)
    found = read(database, experiments.find, experiment.id)
    assert found.spec == specification(ONE_RUN, description="why", tags=["b", "a"], **SWEPT).model_dump(
        mode="json"
    )
    assert (found.owner, found.description, found.tags) == ("ann", "why", ["b", "a"])
    assert found.created_at == found.updated_at == experiment.created_at


def test_missing_experiment_is_not_found(database: Database) -> None:
    for query in (experiments.find, experiments.delete, experiments.edit):
        with pytest.raises(ResourceNotFoundError, match="there is no experiment 'exp_none'"):
            write(database, query, "exp_none")
    with pytest.raises(ResourceNotFoundError, match="there is no experiment 'exp_none'"):
        write(database, experiments.edit, "exp_none", priority=1)
    with pytest.raises(ResourceNotFoundError, match="there is no run 'run_none'"):
        read(database, runs.find, "run_none")


def test_the_same_key_and_body_give_the_same_experiment(database: Database) -> None:
    first = post(database, "key")
    before = read(database, counts)
    assert post(database, "key") == first
    assert read(database, counts) == before


def test_a_key_used_for_another_body_is_refused_and_nothing_is_made(database: Database) -> None:
    first = post(database, "key")
    before = read(database, counts)
    with pytest.raises(
        IdempotencyError,
        match=f"'key' was already used for another request, which created {first}; use a new key",
    ):
        post(database, "key", name="another")
    assert read(database, counts) == before


def test_keys_belong_to_their_owners(database: Database) -> None:
    assert post(database, "key", owner="ann") != post(database, "key", owner="bob")


def test_a_key_is_free_again_when_its_experiment_is_deleted(database: Database) -> None:
    first = post(database, "key")
    write(database, experiments.delete, first)
    assert post(database, "key", name="another") != first


def test_requests_at_once_under_one_key_make_one_experiment(database: Database) -> None:
    with ThreadPoolExecutor(6) as clients:
        made = list(clients.map(lambda _: post(database, "key"), range(12)))
    assert len(set(made)) == 1
    assert read(database, counts)["run"] == 1


def test_a_key_is_good_for_one_experiment_while_others_delete_it(database: Database) -> None:
    def post_and_delete(_: int) -> None:
        made = retried(lambda: post(database, "key"))
        with suppress(ResourceNotFoundError):
            retried(lambda: write(database, experiments.delete, made))

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(post_and_delete, range(60)))
    assert set(read(database, counts).values()) == {0}


def test_a_creation_that_is_rolled_back_leaves_its_key_free(database: Database) -> None:
    with suppress(ConnectionError), database.transaction() as session:
        experiments.create(session, NewExperiment(specification(ONE_RUN), idempotency_key="key"))
        raise ConnectionError
    assert set(read(database, counts).values()) == {0}
    post(database, "key", owner="local")


def test_pages_are_newest_first_complete_and_without_repeats(database: Database) -> None:
    made = [submit(database).id for _ in range(7)]
    assert list(pages(database, 3)) == [made[6:3:-1], made[3:0:-1], made[:1]]
    assert list(pages(database, 7)) == [made[::-1]]


def test_pages_stay_as_they_are_when_experiments_are_added_and_deleted(database: Database) -> None:
    made = [submit(database).id for _ in range(6)]
    listing = pages(database, 2)
    assert next(listing) == made[5:3:-1]
    submit(database)
    for gone in (made[4], made[2]):
        write(database, experiments.delete, gone)
    assert list(listing) == [[made[3], made[1]], [made[0]]]


def test_a_listing_does_not_load_specifications_and_notes(database: Database) -> None:
    submit(database)
    (item,) = read(database, experiments.page).items
    assert inspect(item).unloaded == {"spec", "notes", "parameters"}


def test_a_listing_can_be_narrowed(database: Database) -> None:
    plain, tagged, renamed = (
        submit(database),
        submit(database, tags=["a", "b"]),
        submit(database, name="other", tags=["b"]),
    )
    finish(database, claim(database))
    assert ids(database, status=Status.SUCCEEDED) == [plain.id]
    assert ids(database, status=Status.QUEUED) == [renamed.id, tagged.id]
    assert ids(database, tag="b") == [renamed.id, tagged.id]
    assert ids(database, tag="a", name="one run") == [tagged.id]
    assert ids(database, name="other", status=Status.PAUSED) == []
    assert list(pages(database, 1, tag="b")) == [[renamed.id], [tagged.id]]


def test_a_listing_can_be_searched_by_a_part_of_the_name(database: Database) -> None:
    names = ["FedProx on digits", "fedavg 100%", "fed_avg", "a\\b"]
    made = {name: submit(database, name=name).id for name in names}
    assert ids(database, search="PROX") == [made["FedProx on digits"]]
    assert ids(database, search="fed") == [made[name] for name in reversed(names[:3])]
    # What databases take for patterns is text.
    assert [ids(database, search=text) for text in ("%", "_", "\\")] == [[made[name]] for name in names[1:]]
    assert ids(database, search="fed", owner="somebody else") == []


def test_a_listing_can_be_bounded_in_time(database: Database) -> None:
    made = [submit(database) for _ in range(3)]
    first, last = made[0].created_at, made[-1].created_at
    moment = timedelta(milliseconds=1)
    assert ids(database, created_after=first, created_before=last + moment) == [one.id for one in made[::-1]]
    assert ids(database, created_before=first) == []
    assert ids(database, created_after=last + moment) == []


def test_bounds_of_a_listing_may_lie_at_the_ends_of_the_calendar(database: Database) -> None:
    made = [submit(database).id]
    for early in (datetime.min, datetime(1, 1, 1), datetime(1969, 7, 20), datetime(1970, 1, 1)):  # noqa: DTZ001, DTZ901
        for zone in (UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
            assert ids(database, created_after=early.replace(tzinfo=zone)) == made
            assert ids(database, created_before=early.replace(tzinfo=zone)) == []
            late = datetime.max.replace(tzinfo=zone)
            assert ids(database, created_after=late) == []
            assert ids(database, created_before=late) == made


def test_ids_sort_by_age(database: Database) -> None:
    made = [submit(database, seeds=[0, 1, 2]) for _ in range(3)]
    for older, newer in pairwise(sorted(made, key=lambda one: one.id)):
        assert older.created_at <= newer.created_at


def test_an_edit_changes_what_is_given_and_nothing_else(database: Database) -> None:
    experiment = submit(database, tags=["a"])
    edited = write(database, experiments.edit, experiment.id, name="new")
    assert (edited.name, edited.tags, edited.priority) == ("new", ["a"], 5)
    edited = write(database, experiments.edit, experiment.id, tags=["c", "b", "c"])
    assert (edited.name, edited.tags) == ("new", ["c", "b", "c"])
    assert edited.updated_at > experiment.updated_at
    assert ids(database, tag="a") == []
    assert ids(database, tag="c") == [experiment.id]


def test_a_new_priority_holds_for_all_runs_those_that_are_retried_too(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1])
    fail(database, claim(database))
    write(database, experiments.edit, experiment.id, priority=9)
    assert [run.priority for run in runs_of(database, experiment)] == [9, 9]


def test_deleting_removes_all_rows(database: Database) -> None:
    empty = read(database, counts)
    experiment_id = post(database, "key")
    held = commit(database, claim(database), 2)
    write(database, experiments.delete, experiment_id)
    assert read(database, counts) == empty
    with pytest.raises(StaleLeaseError):
        commit_slice(database, held)


def test_deleting_leaves_other_experiments_alone(database: Database) -> None:
    kept, gone = submit(database, tags=["a"]), submit(database, tags=["a"])
    commit(database, claim(database), 2)
    write(database, experiments.delete, gone.id)
    assert (run_of(database, kept).done, ids(database, tag="a")) == (2, [kept.id])


def test_pages_of_what_an_owner_sees_are_his_and_what_others_share_with_him(database: Database) -> None:
    rng = np.random.default_rng(0)
    names, tags = ["ann", "bob", "eve"], [["a"], ["b"], ["a", "b"], []]
    made = []
    for number in range(30):
        owner = names[rng.integers(3)]
        record = submit(database, owner=owner, name=f"n{rng.integers(3)}", tags=tags[number % 4])
        readers = [name for name in names if name != owner and rng.random() < 0.4]
        write(database, sharing.share, record, read=readers)
        made.append((record, {owner, *readers}))
    filters: list[dict[str, Any]] = [{}, {"tag": "a"}, {"name": "n1"}, {"tag": "b", "search": "N2"}]
    for wanted, limit in product(filters, (1, 4, 30)):
        expected = [
            record.id
            for record, readers in reversed(made)
            if "bob" in readers
            and wanted.get("tag") in (None, *record.tags)
            and wanted.get("name") in (None, record.name)
            and wanted.get("search", "").lower() in record.name
        ]
        found = list(pages(database, limit, seen_by="bob", **wanted))
        assert list(chain.from_iterable(found)) == expected
        assert all(len(page) == limit for page in found[:-1])


@on_postgresql
@pytest.mark.parametrize("filters", [{}, {"status": Status.QUEUED}, {"tag": "a"}], ids=str)
def test_a_page_of_an_owner_does_not_read_the_experiments_of_others(
    database: Database, filters: dict[str, Any]
) -> None:
    """By the plan: the database finds them in an index by owner, or one by one."""
    submit(database, owner="ann", tags=["a"])
    other = submit(database, owner="bob", tags=["a"])
    with database.transaction() as session:
        for kind, key in ((ExperimentRecord, "id"), (TagRecord, "experiment_id")):
            (row,) = session.execute(
                select(kind.__table__).where(kind.__table__.c[key] == other.id)
            ).mappings()
            session.execute(insert(kind), [{**row, key: f"{other.id}_{number}"} for number in range(3_000)])
        session.execute(text("ANALYZE"))
    # The oldest SQLAlchemy has no events on connections that only read.
    with database.transaction() as session:
        asked: list[tuple[str, Any]] = []
        event.listen(
            session.connection(), "before_cursor_execute", lambda *given: asked.append((given[2], given[3]))
        )
        assert len(experiments.page(session, Filter(seen_by="ann", **filters)).items) == 1
        ((statement, given),) = asked
        rows = session.connection().exec_driver_sql("EXPLAIN " + statement, given)
        plan = "\n".join(str(row[-1]) for row in rows)
    assert "experiment_by_owner" in plan
    assert not re.search(r"Seq Scan on experiment\b|Scan Backward using experiment_pkey", plan), plan


# Creation of experiments: idempotency keys, quotas and outcomes from elsewhere.


def new(name: str, **given: object) -> NewExperiment:
    spec = specification(ONE_RUN, name=name)
    return NewExperiment(spec, request_hash=name, **given)  # type: ignore[arg-type]


def names(database: Database) -> list[str]:
    return sorted(record.name for record in read(database, experiments.page).items)


def test_a_repeated_request_returns_the_first_experiment(database: Database) -> None:
    first = write(database, experiments.create, new("a", idempotency_key="k"))
    again = write(database, experiments.create, new("a", idempotency_key="k"))
    assert (first.is_new, again.is_new) == (True, False)
    assert first.record.id == again.record.id
    assert names(database) == ["a"]


def test_another_request_under_a_used_key_is_refused_but_owners_share_no_keys(database: Database) -> None:
    write(database, experiments.create, new("a", idempotency_key="k"))
    with pytest.raises(IdempotencyError):
        write(database, experiments.create, new("b", idempotency_key="k"))
    write(database, experiments.create, new("c", owner="ann", idempotency_key="k"))
    assert names(database) == ["a", "c"]


def test_a_refusal_by_a_quota_leaves_the_idempotency_key_free(database: Database) -> None:
    key_id = write(database, keys.create, owner="ann", scope=Scope.SUBMIT, max_waiting_runs=1)[0].id
    write(database, experiments.create, new("first", owner="ann", key_id=key_id))
    with pytest.raises(QuotaError, match="2 queued or paused runs, limit 1"):
        write(database, experiments.create, new("second", owner="ann", key_id=key_id, idempotency_key="k"))
    write(database, experiments.create, new("other", owner="ann", idempotency_key="k"))
    assert names(database) == ["first", "other"]


def test_runs_begin_with_the_provenance_they_are_given(database: Database) -> None:
    spec = specification(ONE_RUN, seeds=[0, 1])
    given = {(0, 1): {"engine_choice": {"engine": "parallel"}}}
    made = write(database, experiments.create, NewExperiment(spec, run_provenance=given)).record
    assert [run.provenance for run in runs_of(database, made)] == [{}, given[0, 1]]
