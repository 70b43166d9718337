"""A real S3 server (moto's) in this process, which fails when it is told to: requests are refused, lost
or late, and answers break off.
"""

import io
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from itertools import count
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

ACCOUNT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
SLOW_S = 0.1
_AT_ONCE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER by which closing a connection resets it."""
_numbers = count()


class Fault(Enum):
    """Fate of a request."""

    BUSY = auto()
    """It is answered with 503."""
    REFUSED = auto()
    """It is answered as one with an unknown key."""
    RESET = auto()
    """The connection is reset before it is read."""
    LOST = auto()
    """It is carried out, and the connection is reset in place of an answer."""
    CUT = auto()
    """Half of the answer's body arrives."""
    SLOW = auto()
    """It is carried out after SLOW_S."""


REFUSALS = {
    Fault.BUSY: (503, "SlowDown", "Please reduce your request rate."),
    Fault.REFUSED: (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist."),
}


class S3:
    """The server's address, and what goes wrong with it. Changes in place."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.next_fault: Callable[[], Fault | None] = lambda: None
        """Asked at each request."""
        self.environment: Mapping[str, str] = {**ACCOUNT, "AWS_ENDPOINT_URL": url}
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id=ACCOUNT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ACCOUNT["AWS_SECRET_ACCESS_KEY"],
            region_name=ACCOUNT["AWS_DEFAULT_REGION"],
        )

    def fail(self, *faults: Fault, share: float = 1.0, seed: int = 0) -> None:
        """Let this share of all requests suffer one of the faults, at random; none without any."""
        draws = random.Random(seed)
        self.next_fault = lambda: draws.choice(faults) if faults and draws.random() < share else None

    def bucket(self) -> str:
        """Create a bucket; returns its name."""
        name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        return name

    def buckets(self) -> set[str]:
        """Names of all buckets."""
        return {bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]}

    def keys(self, bucket: str) -> list[str]:
        """Keys of the objects in a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Contents of a bucket by key."""
        return {
            key: self.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in self.keys(bucket)
        }


class _FaultyHandler(MotoRequestHandler):
    """Serves one request to a connection."""

    s3: S3

    def log(self, *_: object) -> None:
        """Nothing."""

    def run_wsgi(self) -> None:
        if self.headers.get("Expect"):
            # Here, since what follows may not be sent.
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            del self.headers["Expect"]
        self.close_connection = True
        match self.s3.next_fault():
            case Fault.BUSY | Fault.REFUSED as refusal:
                self._refuse(*REFUSALS[refusal])
            case Fault.RESET:
                self._reset()
            case Fault.LOST:
                self._carry_out()
                self._reset()
            case Fault.CUT:
                head, between, body = self._carry_out().partition(b"\r\n\r\n")
                self.wfile.write(head + between + body[: len(body) // 2])
            case late:
                time.sleep(0.0 if late is None else SLOW_S)
                super().run_wsgi()

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def _carry_out(self) -> bytes:
        """Carry the request out; returns the answer, which is not sent."""
        connection, self.wfile = self.wfile, io.BytesIO()
        super().run_wsgi()
        answer, self.wfile = self.wfile.getvalue(), connection
        return answer

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.connection.close()


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server as long as the block lasts. Its buckets are those of all servers of this process."""
    handler: Any = type("Handler", (_FaultyHandler,), {})
    server = make_server(
        "127.0.0.1",
        0,
        DomainDispatcherApplication(create_backend_app),
        threaded=True,
        request_handler=handler,
    )
    handler.s3 = S3(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield handler.s3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
