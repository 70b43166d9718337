"""The default interval of evaluations, against work counted by hand."""

import pytest

from fedq.planning.evaluation import default_interval
from tests.builders.specifications import Document, specification

IMAGES: Document = {
    "name": "cifar10",
    "problem": {
        "dataset": {"kind": "cifar10"},
        "partition": {"kind": "iid", "clients": 100},
        "model": {"kind": "cnn"},
    },
    "algorithm": {"kind": "fedavg"},
    # 10 clients of 500 samples: 5,000 gradients, the work of scoring 15,000 samples.
    "participation": {"kind": "uniform", "clients_per_round": 10},
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 50},
    "rounds": 1_000,
    "evaluation": {"training_loss": "sample"},
}


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        # 5,000 of the sample and 10,000 of the test data: as much as the training, so a fifth of it.
        ({}, 5),
        ({"local": {"epochs": 5}}, 1),
        ({"local": {"epochs": 4}}, 2),
        # Of 50,000 in full and 10,000: 60,000 over 15,000.
        ({"evaluation": {"training_loss": "full"}}, 20),
        ({"evaluation": {"measures": ["test_accuracy"]}}, 5),
        ({"evaluation": {"measures": ["train_loss"]}}, 2),
        # The gradient of every client, 150,000.
        ({"evaluation": {"measures": ["train_loss", "b_dissimilarity"]}}, 100),
        ({"evaluation": {"measures": ["train_loss", "b_dissimilarity"], "population_every": 100}}, 2),
        # Of 60,000 samples 24,000 are held out: 29,000 scored, over 10 clients of 360 trained on.
        ({"problem": {"partition": {"hold_out": 0.4}}}, 20),
        # A round of 100 clients is ten times the work; the weakest arm decides.
        ({"participation": {"clients_per_round": 100}}, 1),
        (
            {
                "participation": {"clients_per_round": 100},
                "sweep": {"participation.clients_per_round": [100, 10]},
            },
            5,
        ),
        # The interval divides the rounds and the first rung, and leaves five evaluations.
        ({"rounds": 999}, 1),
        ({"rounds": 10}, 2),
        (
            {
                "sweep": {"local.lr": [0.1, 0.2, 0.3]},
                "search": {"kind": "asha", "metric": "test_accuracy", "min_rounds": 112},
            },
            2,
        ),
        # Patience counts evaluations.
        ({"early_stopping": {"metric": "test_accuracy", "patience": 5}}, 1),
        ({"sweep": {"evaluation.every": [1, 2]}}, 1),
        # 15,000 samples and 7,850 parameters: 1.2e8 a round.
        (
            {"problem": {"dataset": {"kind": "mnist"}, "model": {"kind": "logistic"}}, "rounds": 160},
            1,
        ),
        # 6,000 gradients of a dense network, each counted as one sample: 15,000 over 1,200.
        ({"problem": {"dataset": {"kind": "mnist"}, "model": {"kind": "logistic"}}}, 20),
    ],
)
def test_evaluations_take_a_fifth_of_the_trainings_work(changes: Document, every: int) -> None:
    assert default_interval(specification(IMAGES, **changes)) == every


def test_exact_problems_are_evaluated_every_round() -> None:
    exact = {
        **IMAGES,
        "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": 100, "dim": 50}}},
        "local": {"lr": 0.1, "steps": 1},
    }
    assert default_interval(specification(exact)) == 1
