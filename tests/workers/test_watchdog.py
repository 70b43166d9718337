"""A process that has stopped is killed by its parent, and lets go of what it held."""

import multiprocessing
import os
import signal
from contextlib import closing

from fedcore.platform.store import Database, open_database, runs
from tests.builders.claims import claim
from tests.builders.experiments import run_of, submit
from tests.support.freezing import Locks
from tests.support.polling import eventually
from workers.liveness import ChildWatchdog


def test_a_process_that_stops_in_the_middle_of_a_write_is_killed_and_others_may_write(
    database: Database,
) -> None:
    experiment = submit(database)
    held, pulse = claim(database), ChildWatchdog(patience_s=0.5)

    def stops() -> None:
        pulse.attach()
        with (
            closing(open_database(database.url.render_as_string(hide_password=False))) as own,
            own.transaction() as session,
        ):
            runs.renew(session, held, lease_s=60)
            os.kill(os.getpid(), signal.SIGSTOP)

    child = multiprocessing.get_context("fork").Process(target=stops)
    child.start()
    with closing(Locks(database.url)) as locks:
        eventually(lambda: locks.writing(held.run_id), timeout_s=60)
        pulse.start()
        eventually(lambda: not locks.writing(held.run_id), timeout_s=60)
    child.join(60)
    pulse.detach()
    assert child.exitcode == -signal.SIGKILL
    assert run_of(database, experiment).fence == held.fence
