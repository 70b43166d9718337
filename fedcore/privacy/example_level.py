"""Example-level differential privacy: clients train by DP-SGD."""

from __future__ import annotations

from typing import Literal

from fedcore.assurance import Assurance
from fedcore.core import Aggregator
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import Privacy, PrivateRun
from fedcore.privacy.local import most_participations


class ExampleLevelPrivacy(Privacy):
    """DP-SGD in every local step: gradients of samples are clipped to length C, and noise is added to
    their sum.

        y <- y - eta (1/B) (sum_j g_j min(1, C / |g_j|) + N(0, z^2 C^2 I))

    over the samples j of a mini-batch, with B = `local.batch_size` also where a batch is smaller. The
    gradient of the model's `l2` is added afterwards, since it knows nothing of samples. Messages
    need no noise of their own: whatever is made of noisy gradients has their privacy. A step has one
    noise, so algorithms that send what they made of several gradients of a step are refused.

    Neighbours differ in one sample of one client, which counts or does not. An epoch is a pass over
    a permutation, so that a sample is in one of its batches: an epoch costs what one Gaussian
    mechanism costs, whatever the number of samples. epsilon holds for a sample of a client that
    takes part in every round, or, of a `trace`, in the rounds in which it is listed. The paper
    draws every batch anew instead (Poisson sampling), which its accountant counts as amplification;
    passes have none.
    """

    source = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016 (DP-SGD)"
    example = {"noise_multiplier": 0.5, "clip_norm": 1.0}
    clips_samples = True
    replaces_aggregator = False
    requires = frozenset({Assurance.NOISY_GRADIENTS, Assurance.ONE_GRADIENT, Assurance.ONE_SAMPLE})

    kind: Literal["example_level"] = "example_level"

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        return GaussianRelease(noise), run.epochs * most_participations(run, rounds)

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        return within
