"""The application behind a real server on a real socket."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from fastapi import FastAPI

from tests.support.polling import eventually
from workers.embedded.stack import API

HEAD_BYTES = int(API[API.index("--h11-max-incomplete-event-size") + 1])
"""The limit with which the service is started."""


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """`app` served by uvicorn in a thread; its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_level="warning",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
