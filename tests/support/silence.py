"""A server that takes connections and never says a word: any listening socket that nobody accepts
from.
"""

import socket


def knocks(silent: socket.socket) -> int:
    """How many connections have come to a listening socket since this was last asked.

    They are closed.
    """
    silent.settimeout(0)
    count = 0
    while True:
        try:
            connection, _ = silent.accept()
        except BlockingIOError:
            return count
        connection.close()
        count += 1
