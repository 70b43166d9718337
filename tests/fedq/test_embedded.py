"""A service of one's own that cannot start."""

import pytest

from fedq.client import ServiceUnreachableError
from fedq.embedded import embedded_service


@pytest.mark.slow
def test_a_stack_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(ServiceUnreachableError, match="PYTHONHOME = '/nowhere'"), embedded_service(workers=1):
        pytest.fail("the service started")
