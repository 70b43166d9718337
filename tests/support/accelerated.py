"""Skip tests of the engine `compiled` in a tree without `fedcore/engine/accelerated`."""

import pytest

from fedcore.engine.engines import ENGINES

NEEDS_COMPILED = pytest.mark.skipif("compiled" not in ENGINES, reason="no fedcore.engine.accelerated here")
