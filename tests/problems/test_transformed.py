"""The transformed objective: the same sum, with the shares inside."""

import numpy as np
import torch

from fedcore.problems.quadratic import load_quadratic
from fedcore.problems.transformed import Transformed
from tests.builders.specifications import QUADRATIC, specification

PROBLEM = load_quadratic(specification(QUADRATIC).problem.dataset, "cpu", torch.float64)  # type: ignore[arg-type]
TRANSFORMED = Transformed(PROBLEM)
THETA = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
EVERYONE = np.arange(4)


def test_the_whole_gradient_stays_and_shares_become_equal() -> None:
    before = torch.from_numpy(PROBLEM.share) @ PROBLEM.client_gradients(THETA, EVERYONE)
    after = torch.from_numpy(TRANSFORMED.share) @ TRANSFORMED.client_gradients(THETA, EVERYONE)
    torch.testing.assert_close(after, before, rtol=1e-14, atol=0)
    assert set(TRANSFORMED.share) == {0.25}
    assert TRANSFORMED.evaluate(THETA, {"train_loss"}) == PROBLEM.evaluate(THETA, {"train_loss"})


def test_ways_to_a_gradient_agree() -> None:
    together = TRANSFORMED.client_gradients(THETA, EVERYONE)
    stacked = TRANSFORMED.stack(EVERYONE, torch.empty(0)).gradient(THETA.expand(4, -1), 0)
    alone = torch.stack([TRANSFORMED.gradient(THETA, client, None) for client in range(4)])
    torch.testing.assert_close(stacked, together, rtol=1e-14, atol=0)
    torch.testing.assert_close(alone, together, rtol=1e-14, atol=0)
