"""HTTP as the API takes it: `uvicorn --http api.heads:BoundedHeads`."""

from api.paces import Paced

MOST_BYTES = 1 << 16
"""Of a request's first line and headers."""
REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedHeads(Paced):
    """Httptools, paced, which alone would gather headers without end, from anybody: one who sends too many is hung up on."""

    _within = True
    _whole = False
    """A head has ended in the piece at hand."""
    _gathered = 0

    def data_received(self, data: bytes) -> None:
        """What has come from the client."""
        before, self._whole = self._within, False
        super().data_received(data)
        # A piece in which a head ends may hold a body, or whole requests, as well, and is not counted.
        if before and self._within and not self._whole:
            self._gathered += len(data)
            if self._gathered > MOST_BYTES and not self.transport.is_closing():
                self.transport.write(REFUSAL)
                self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._within, self._whole = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole; another may follow."""
        self._within, self._gathered = True, 0
        super().on_message_complete()
