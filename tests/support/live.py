"""The application behind a real server on a real socket."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from fastapi import FastAPI

from api.heads import BoundedHeads
from tests.support.polling import eventually


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """`app` served by uvicorn in a thread; its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedHeads, log_level="warning", ws="none", timeout_graceful_shutdown=1))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
