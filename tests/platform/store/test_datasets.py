"""Users' data sets: kept once, found, listed page by page, kept while they are used."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from sqlalchemy import event, text

from fedcore.data.description import UploadedContent
from fedcore.errors import ResourceNotFoundError, SpecificationError, StateConflictError
from fedcore.platform.store import Database, experiments, extension, sharing
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import DatasetRecord
from tests.builders.claims import claim, finish
from tests.builders.specifications import ONE_RUN, Document, specification
from tests.builders.transactions import on_postgresql, read, write
from tests.support.polling import eventually

CONTENT = UploadedContent(
    digest="0" * 64, features=(4,), classes=3, clients=7, train_samples=48, test_samples=12
)
SIZES = {"smallest": 6, "median": 7.0, "mean": 6.9, "largest": 8}


def keep(database: Database, name: str = "mine", *, digest: str = "0", owner: str = "ann") -> DatasetRecord:
    """Store a data set."""
    with database.transaction() as session:
        content = CONTENT.model_copy(update={"digest": digest * 64})
        return DATASETS.create(
            session,
            DATASETS.new_id(session),
            content.digest,
            name=name,
            content=content.model_dump(mode="json"),
            client_sizes=SIZES,
            size_bytes=3_000,
            owner=owner,
        )


def document(*records: DatasetRecord, **changes: Any) -> Document:
    """An experiment on data sets, an arm for each."""
    blocks = [
        {"kind": "uploaded", "id": record.id, "content": record.content | changes} for record in records
    ]
    problem = {"dataset": blocks[0], "model": {"kind": "logistic"}}
    sweep = {"problem.dataset": blocks} if len(blocks) > 1 else {}
    return ONE_RUN | {"problem": problem, "sweep": sweep}


def submit(database: Database, *records: DatasetRecord, owner: str = "ann", **changes: Any) -> str:
    """Submit an experiment on data sets; its id."""
    new = NewExperiment(specification(document(*records, **changes)), owner=owner)
    return write(database, experiments.create, new).record.id


def test_a_data_set_is_found_as_it_was_stored(database: Database) -> None:
    kept = keep(database)
    found = read(database, DATASETS.find, kept.id, "ann")
    assert (found.name, found.owner, found.size_bytes, found.client_sizes) == ("mine", "ann", 3_000, SIZES)
    assert UploadedContent.model_validate(found.content) == CONTENT
    with pytest.raises(ResourceNotFoundError, match="'set_none'"):
        read(database, DATASETS.find, "set_none", None)


def test_the_same_content_is_kept_once_for_each_owner(database: Database) -> None:
    first, again, other, bobs = (
        keep(database),
        keep(database, "again"),
        keep(database, digest="1"),
        keep(database, owner="bob"),
    )
    assert (again.id, again.name) == (first.id, "mine")
    assert len({first.id, other.id, bobs.id}) == 3


def test_uploads_of_the_same_content_at_once_make_one(database: Database) -> None:
    with ThreadPoolExecutor(8) as uploading:
        assert len({record.id for record in uploading.map(lambda _: keep(database), range(8))}) == 1


def test_data_sets_are_listed_newest_first_a_page_at_a_time(database: Database) -> None:
    ids = [keep(database, digest=digit).id for digit in "0123456"]
    pages: list[list[str]] = []
    cursor = None
    while not pages or cursor is not None:
        page = read(database, DATASETS.page, "ann", limit=3, cursor=cursor)
        pages.append([item.id for item in page.items])
        cursor = page.next
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [id for page in pages for id in page] == sorted(ids, reverse=True)


def test_data_set_that_an_unfinished_experiment_uses_in_any_arm_cannot_be_deleted(database: Database) -> None:
    first, second = keep(database), keep(database, digest="1")
    experiment = submit(database, first, second)
    for kept in (first, second):
        with pytest.raises(
            StateConflictError, match=f"{kept.id} is in use by {experiment}, which is unfinished"
        ):
            write(database, DATASETS.delete, kept.id, "ann")
    for _ in range(2):
        finish(database, claim(database))
    write(database, DATASETS.delete, first.id, "ann")
    with pytest.raises(ResourceNotFoundError):
        write(database, DATASETS.delete, first.id, "ann")
    assert read(database, experiments.find, experiment).id == experiment
    write(database, experiments.delete, experiment)
    assert read(database, DATASETS.find, second.id, "ann").id == second.id


def test_an_experiment_on_data_that_are_not_there_or_are_others_is_refused(database: Database) -> None:
    kept = keep(database)
    gone = keep(database, digest="1")
    write(database, DATASETS.delete, gone.id, "ann")
    for refused, pointer, told in (
        (document(gone), "/problem/dataset/id", f"there is no data set '{gone.id}'"),
        (document(kept, gone), "/problem/dataset/id", f"there is no data set '{gone.id}'"),
        (document(kept, clients=6), "/problem/dataset/content", f"does not match {kept.id}"),
        (
            document(kept) | {"sweep": {"problem.dataset.content.clients": [7, 6]}},
            "/problem/dataset/content",
            "sweep `problem.dataset`",
        ),
        (document(kept) | {"sweep": {"problem.dataset.id": [None]}}, "/problem/dataset/id", "required"),
    ):
        with pytest.raises(SpecificationError) as error:
            write(database, experiments.create, NewExperiment(specification(refused), owner="ann"))
        assert (error.value.pointer, told in error.value.detail) == (pointer, True)
    assert not read(database, experiments.page).items


def test_only_experiments_of_its_owner_keep_it_and_only_those_with_access_use_it(database: Database) -> None:
    kept, other = keep(database), keep(database, digest="1")
    hidden = {**document(kept), "sweep": {"problem": [ONE_RUN["problem"]]}}
    write(database, sharing.share, other, read=["ben"])
    for refused in (document(kept), document(other, kept), hidden):
        with pytest.raises(SpecificationError, match=f"there is no data set '{kept.id}'"):
            write(database, experiments.create, NewExperiment(specification(refused), owner="ben"))
    administrators = NewExperiment(specification(document(kept)), owner="root", may_use_all=True)
    write(database, experiments.create, administrators)
    write(database, sharing.share, kept, read=["ben"])
    submit(database, kept, owner="ben")
    write(database, DATASETS.delete, kept.id, "ann")
    with pytest.raises(ResourceNotFoundError):
        read(database, DATASETS.find, kept.id, None)


@on_postgresql
def test_a_deletion_waits_for_another_owner_who_is_just_submitting_and_goes_on(database: Database) -> None:
    kept, started = keep(database), Event()
    write(database, sharing.share, kept, read=["ben"])

    def delete() -> None:
        started.set()
        write(database, DATASETS.delete, kept.id, "ann")

    with ThreadPoolExecutor(1) as deleting:
        with database.transaction() as session:
            new = NewExperiment(specification(document(kept)), owner="ben")
            made = experiments.create(session, new).record.id
            attempt = deleting.submit(delete)
            started.wait()
        attempt.result()
    assert read(database, experiments.find, made).owner == "ben"
    with pytest.raises(ResourceNotFoundError):
        read(database, DATASETS.find, kept.id, None)


@on_postgresql
def test_a_deletion_waits_for_whoever_is_just_submitting(database: Database) -> None:
    kept, started = keep(database), Event()

    def delete() -> None:
        started.set()
        write(database, DATASETS.delete, kept.id, "ann")

    with ThreadPoolExecutor(1) as deleting:
        with database.transaction() as session:
            experiments.create(session, NewExperiment(specification(document(kept)), owner="ann"))
            attempt = deleting.submit(delete)
            started.wait()
        with pytest.raises(StateConflictError):
            attempt.result()


def _others_wait(database: Database) -> bool:
    """Return whether some transaction waits for a lock."""
    own = "datname = current_database() AND wait_event_type = 'Lock'"
    with database.reading() as session:
        return bool(session.scalar(text(f"SELECT count(*) FROM pg_stat_activity WHERE {own}")))


@on_postgresql
def test_a_deletion_and_an_extension_wait_for_each_other_in_one_order(database: Database) -> None:
    kept = keep(database)
    experiment = submit(database, kept)
    finish(database, claim(database))
    with ThreadPoolExecutor(1) as deleting, database.transaction() as session:
        attempts: list[Future[None]] = []

        def delete_meanwhile(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            # At the first statement on its uses of data sets a deletion begins, and comes to wait.
            if "dataset_use" in statement and not attempts:
                attempts.append(deleting.submit(write, database, DATASETS.delete, kept.id, "ann"))
                eventually(lambda: _others_wait(database))

        event.listen(session.connection(), "after_cursor_execute", delete_meanwhile)
        extension.extend(session, experiment, rounds=20, seeds=[], measure=lambda spec: [7] * spec.arm_count)
        session.commit()
        with pytest.raises(StateConflictError, match="is unfinished"):
            attempts[0].result()
    with pytest.raises(StateConflictError):
        write(database, DATASETS.delete, kept.id, "ann")
