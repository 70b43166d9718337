"""Stopping a process at a chosen moment: whether it has stopped, and what it holds then."""

import psutil
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.polling import eventually


class Locks:
    """Looks at the locks of one database, by trying them."""

    def __init__(self, url: URL) -> None:
        self._sqlite = url.get_backend_name() == "sqlite"
        self._engine = create_engine(
            url, connect_args={"timeout": 0, "isolation_level": None} if self._sqlite else {}
        )

    def writing(self, run_id: str) -> bool:
        """True during a write to the run; on SQLite, during any write."""
        try:
            with self._engine.connect() as connection:
                if self._sqlite:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    connection.execute(
                        text("SELECT 1 FROM run WHERE id = :id FOR UPDATE NOWAIT"), {"id": run_id}
                    )
                connection.rollback()
        except OperationalError:
            return True
        return False

    def close(self) -> None:
        """Close its connection."""
        self._engine.dispose()


def wait_until_still(pid: int) -> None:
    """Wait until a process that was sent SIGSTOP has stopped, with all its threads."""
    threads = [psutil.Process(thread.id) for thread in psutil.Process(pid).threads()]
    eventually(
        lambda: all(thread.status() == psutil.STATUS_STOPPED for thread in threads),
        timeout_s=60,
        every_s=0.001,
    )
