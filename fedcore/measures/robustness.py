"""Success of an attack, and of the defence against it (`systems.attack`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedcore.lazy import np, torch
from fedcore.measures.base import Evaluated, Measured, MeasureInfo, MeasureSpec, describe_share

if TYPE_CHECKING:
    from fedcore.problems.supervised import SupervisedProblem


class AttackSuccess(MeasureSpec):
    """Success of an attack that wants other labels."""

    of = "model"
    infos = (
        describe_share(
            "attack_success_rate",
            "share of the test samples aimed at by a data poisoning attack that get the label it wants",
            "max",
            "attack",
        ),
    )

    kind: Literal["attack_success"] = "attack_success"

    def compute(self, evaluated: Evaluated) -> Measured:
        """Nothing for an attack that wants no labels, or without test samples that it aims at."""
        if evaluated.attackers is None or not evaluated.attackers.attack.poisons():
            return {}
        problem: SupervisedProblem = evaluated.problem  # type: ignore[assignment]
        aimed = evaluated.attackers.wanted(problem.data.dataset.test)
        if aimed is None or not len(aimed):
            return {}
        return {"attack_success_rate": problem.accuracy(evaluated.x, aimed)}


class HonestAccuracy(MeasureSpec):
    """Accuracy of the clients that are not malicious."""

    of = "population"
    infos = (
        describe_share(
            "honest_client_accuracy", "mean accuracy over the clients that are not malicious", "max", "attack"
        ),
    )

    kind: Literal["honest_accuracy"] = "honest_accuracy"

    def compute(self, evaluated: Evaluated) -> Measured:
        """Nothing without classes, or if no honest client has samples to be tested on."""
        accuracies = evaluated.problem.client_accuracies(evaluated.x)
        if evaluated.attackers is None or accuracies is None:
            return {}
        honest = np.delete(accuracies, evaluated.attackers.clients)
        known = honest[~np.isnan(honest)]
        return {"honest_client_accuracy": float(known.mean())} if len(known) else {}


class HonestDistance(MeasureSpec):
    """Distance of the server's direction from the mean of the honest clients' changes."""

    of = "round"
    needs_deltas = True
    infos = (
        MeasureInfo(
            "distance_to_honest_mean",
            "Euclidean distance of the server's direction from the weighted mean change of the honest"
            " clients of the round",
            null_if="no client of the round is honest",
            better="min",
            needs="attack",
            least=0.0,
        ),
    )

    kind: Literal["honest_distance"] = "honest_distance"

    def compute(self, evaluated: Evaluated) -> Measured:
        """NaN if all clients of the round are malicious; nothing of a server with several models."""
        if (
            evaluated.attackers is None
            or evaluated.round is None
            or evaluated.round.cohort.models is not None
        ):
            return {}
        assert evaluated.round.deltas is not None
        cohort = evaluated.round.cohort
        weights = torch.where(evaluated.attackers.among(cohort.clients), 0.0, cohort.weights)
        honest = (weights / weights.sum()) @ evaluated.round.deltas
        return {"distance_to_honest_mean": float((evaluated.round.combined.direction - honest).norm())}
