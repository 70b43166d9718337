"""The doors of an embedded stack: the address it listens on, and the key that opens it."""

import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address

from fedcore.errors import AuthenticationError
from fedcore.platform import local_credentials
from fedcore.platform.access import LOCAL, Scope, Token
from fedcore.platform.store import audit, keys, open_database
from fedcore.settings import Settings

API = (
    *(sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app"),
    # h11 bounds what it buffers of heads, trailers and chunk headers; httptools, uvicorn's default,
    # does not.
    *("--http", "h11", "--h11-max-incomplete-event-size", "65536"),
    *("--no-access-log", "--log-level=warning"),
)
"""Command of an API process, to be followed by the descriptor of its socket, as `--fd=7`."""
KEY_NAME = "the embedded stack's own"
REFUSAL = (
    "listening on {host} would expose the service to other machines, but no API key exists: first create one"
    " with `fedq key create OWNER --direct` and the same FEDQ_HOME, or omit --host to serve this machine only"
)


class ListenError(Exception):
    """There is no listening where it was asked for; the message says why, and what to do."""


def ensure_admin_key(configured: Settings) -> str:
    """See to it that the folder holds a valid key of an administrator; its id."""
    held = local_credentials.load(configured.home)
    with closing(open_database(configured.database)) as database, database.transaction() as session:
        if held is not None:
            try:
                return keys.verify(session, Token.parse(held))[0].id
            except AuthenticationError:
                pass  # Revoked, or that of another database: a new one is made.
        record, token = keys.create(session, owner=LOCAL, scope=Scope.ADMIN, name=KEY_NAME)
        audit.record(session, audit.AuditEvent("fedq up", record.id, 201, LOCAL, "", socket.gethostname()))
    local_credentials.save(configured.home, token.text)
    return record.id


@contextmanager
def open_listener(configured: Settings, host: str, port: int, own_key_id: str) -> Iterator[socket.socket]:
    """The socket of the API, held by the stack so that requests wait, not fail, while the API is
    started again. Raises DoorError.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not ip_address(str(address[0]).partition("%")[0]).is_loopback and not _others_have_keys(
            configured, own_key_id
        ):
            raise ListenError(REFUSAL.format(host=host))
        listener = socket.create_server(address, family=family, backlog=256)
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host}:{port}: {error}; choose another --port (0 for any free port) or --host"
        ) from error
    # Uvicorn takes a socket that it is handed for one of Unix. Without this, which connections
    # inherit, the body of an answer would wait until the peer has acknowledged its head: some 40
    # ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def _others_have_keys(configured: Settings, own_key_id: str) -> bool:
    with closing(open_database(configured.database)) as database, database.reading() as session:
        return keys.opens(session, besides=own_key_id)
