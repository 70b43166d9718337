"""FedDC: its first round, written out."""

import numpy as np

from fedcore import run
from tests.algorithms.test_longhand import (
    ETA,
    X0,
    iterates,
)
from tests.builders.specifications import QUADRATIC, specification


def test_the_first_round_of_feddc_is_fedprox_and_adds_the_mean_drift() -> None:
    """Without drift and corrections yet; the mean drift is then the mean change itself."""
    once = {"execution": {"engine": "reference"}, "rounds": 1}
    feddc = iterates({"kind": "feddc", "alpha": 0.7}, [[0, 1, 2, 3]], **once)
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "fedprox", "mu": 0.7},
        local={"lr": ETA},
        participation={"kind": "full", "weighting": "uniform"},
        **once,
    )
    change = np.array([report.extra["x"] for report in run(spec)]) - X0
    np.testing.assert_allclose(feddc, X0 + 2 * change, rtol=0, atol=1e-13)
