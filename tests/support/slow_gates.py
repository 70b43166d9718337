"""Gates whose work takes until a test lets it go on."""

import threading
from collections.abc import Callable

from api.http.gates import OwnerGate, Result
from fedcore.errors import StateConflictError


class SlowGate(OwnerGate):
    """Work that takes until it may go on, and then ends in an error. To be mixed into another gate, or
    with a number of places."""

    def __init__(self, *places: int) -> None:
        super().__init__(*places)
        self.began, self.go_on = threading.Semaphore(0), threading.Event()

    async def run(self, owner: str, work: Callable[[], Result]) -> Result:
        """Tell that the work began, and wait."""

        def work_slowly() -> Result:
            self.began.release()
            self.go_on.wait()
            raise StateConflictError("enough")

        return await super().run(owner, work_slowly)
