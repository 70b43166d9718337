"""What the calls of every noun are made with."""

from fedq.client.transport import Transport

JSON = {"Content-Type": "application/json"}


class Calls:
    """Asks one service."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
