"""Base class of calls."""

from fedq.client.transport import Transport

JSON = {"Content-Type": "application/json"}


class Calls:
    """Calls to one service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
