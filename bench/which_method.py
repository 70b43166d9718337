"""Methods of all families beside FedAvg, on the same data with paired seeds: the tables of
docs/which-method.md.

python -m bench which-method [--conditions labels,time] [--seeds 5] [--write docs/which-method.md]

A new method is an entry of `CONDITIONS`. Where an entry lists several parameters, that with the best
figure on seed 100 is taken, which is not among the seeds that are compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from bench import report
from bench.options import among, command
from fedcore import ExperimentSpec, RoundReport, run
from fedcore.presets import override
from fedcore.statistics.best_set import ComparisonScale, find_best_arms

Document = dict[str, Any]
Arms = Mapping[str, Sequence[Document]]
"""Changes of the specification by the arm's name: one, or several of which one is chosen."""

CLIENTS, TUNING_SEED = 20, 100
TAIL = 0.25
"""Share of the rounds, the last ones, over which a figure is the mean."""
SPEC: Document = {
    "name": "which method",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": CLIENTS, "alpha": 0.1, "hold_out": 0.3},
        "model": {"kind": "mlp", "hidden": [32]},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "epochs": 2, "batch_size": 10},
    "participation": {"kind": "uniform", "clients_per_round": 5},
    "rounds": 40,
    "evaluation": {"measures": ["test_accuracy"]},
}
FULL = {"participation": {"kind": "full"}}


def algorithm(kind: str, **fields: Any) -> Document:
    """An arm with another algorithm."""
    return {"algorithm": {"kind": kind, **fields}}


def aggregator(kind: str, **fields: Any) -> Document:
    """An arm with another aggregation."""
    return {"aggregator": {"kind": kind, **fields}}


def selection(kind: str, **fields: Any) -> Document:
    """An arm with another selection of five clients in each round."""
    return {"participation": {"kind": kind, "clients_per_round": 5, **fields}}


def uplink(kind: str, **fields: Any) -> Document:
    """An arm whose clients compress what they send."""
    return {"compression": {"uplink": {"kind": kind, **fields}}}


def privacy(kind: str, **fields: Any) -> Document:
    """An arm with differential privacy."""
    return {"privacy": {"kind": kind, "delta": 0.001, **fields}}


def labels(alpha: float) -> Document:
    """Clients whose labels differ more the smaller alpha is."""
    return {"problem": {"partition": {"alpha": alpha}}}


def attack(kind: str, **fields: Any) -> Document:
    """All clients take part, and a fifth of them are malicious."""
    return {**FULL, **labels(1.0), "systems": {"attack": {"kind": kind, "share": 0.2, **fields}}}


def asynchronous(kind: str, steps: int, **fields: Any) -> Document:
    """An arm with five clients in training at any time, and as many arrivals as FedAvg has."""
    return {**FULL, "asynchrony": {"kind": kind, "concurrency": 5, **fields}, "rounds": steps}


@dataclass(frozen=True)
class Condition:
    """A condition of clients, devices or attackers, and the arms that are compared with FedAvg there."""

    title: str
    changes: Document
    arms: Arms
    metric: str = "test_accuracy"
    costs: tuple[str, ...] = ("rounds", "MB")
    """The cost of reaching FedAvg's accuracy: columns of COSTS."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Titles of further columns by metric, percentages if they are accuracies."""


GLOBAL: Arms = {
    "FedProx": [algorithm("fedprox", mu=mu) for mu in (0.01, 0.1, 1.0)],
    "FedNova": [algorithm("fednova")],
    "SCAFFOLD": [algorithm("scaffold")],
    "FedDyn": [algorithm("feddyn", alpha=alpha) for alpha in (0.01, 0.1)],
    "FedLin": [algorithm("fedlin")],
    "FedAvgM": [algorithm("fedavgm", beta=beta) for beta in (0.5, 0.9)],
    "FedAdam": [algorithm("fedadam", server_lr=lr) for lr in (0.01, 0.03)],
    "FedYogi": [algorithm("fedyogi", server_lr=lr) for lr in (0.01, 0.03)],
    "FedExP": [algorithm("fedexp")],
    "FedSAM": [algorithm("fedsam", rho=rho) for rho in (0.05, 0.2)],
    "MimeLite": [algorithm("mimelite")],
    "FedAWARE": [algorithm("fedaware")],
}
DEFENCES: Arms = {
    "median": [aggregator("median")],
    "median of buckets": [aggregator("median", bucket_size=2)],
    "trimmed mean": [aggregator("trimmed_mean", trimmed=0.2)],
    "Multi-Krum": [aggregator("krum", malicious=0.2, selected=10)],
    "Bulyan": [aggregator("bulyan", malicious=0.2)],
    "geometric median": [aggregator("geometric_median", iterations=10)],
    "centred clipping": [aggregator("centred_clipping", radius=radius) for radius in (0.3, 1.0)],
    "norm bounding": [aggregator("norm_bounding", radius=radius) for radius in (0.3, 1.0)],
}
PERSONAL = {"personal_accuracy_worst_decile": "worst tenth, %"}
CONDITIONS: Mapping[str, Condition] = {
    "labels": Condition("Labels differ strongly, all clients take part", FULL, GLOBAL),
    "sampled": Condition("Labels differ strongly, 5 of 20 clients take part", {}, GLOBAL),
    "alike": Condition("Labels differ little, 5 of 20 clients take part", labels(10.0), GLOBAL),
    "work": Condition(
        "Unequal work: 1 to 10 epochs, drawn for each client and round",
        {"systems": {"epochs": {"kind": "uniform", "low": 1, "high": 10}}},
        {name: GLOBAL[name] for name in ("FedProx", "FedNova", "SCAFFOLD", "FedDyn", "FedLin")},
    ),
    "time": Condition(
        "Unequal devices: log-normal speed, median 20 steps a second",
        {
            **labels(1.0),
            "systems": {"devices": {"steps_per_second": {"kind": "log_normal", "median": 20, "sigma": 1}}},
        },
        {
            "FedBuff": [asynchronous("fedbuff", 100, buffer=2)],
            "FedAsync": [asynchronous("fedasync", 200, alpha=alpha) for alpha in (0.2, 0.6)],
            "deadline, late clients dropped": [{"systems": {"deadline": {"seconds": 1, "policy": "drop"}}}],
            "deadline, partial work": [{"systems": {"deadline": {"seconds": 1, "policy": "accept_partial"}}}],
            "Oort with speed": [selection("oort", preferred_seconds=1)],
            "FedCS": [selection("fedcs", deadline_seconds=2)],
        },
        costs=("rounds", "seconds"),
        others={"simulated_seconds": "all rounds, seconds"},
    ),
    "selection": Condition(
        "Which 5 of 20 clients take part, labels differ strongly",
        {},
        {
            "by share": [selection("by_share")],
            "power-of-choice": [selection("power_of_choice", candidates=count) for count in (8, 15)],
            "importance": [selection("importance")],
            "Oort": [selection("oort")],
            "DivFL": [selection("divfl")],
        },
    ),
    "compression": Condition(
        "Messages of the clients are compressed, labels differ moderately",
        labels(1.0),
        {
            "top-k, 10 %": [uplink("top_k", ratio=0.1)],
            "top-k, 1 %": [uplink("top_k", ratio=0.01)],
            "top-k, 10 %, EF21": [uplink("top_k", ratio=0.1, feedback="ef21")],
            "random 10 %": [
                uplink("rand_k", ratio=0.1, error_feedback=feedback) for feedback in (True, False)
            ],
            "QSGD, 7 levels": [uplink("qsgd", levels=7)],
            "natural": [uplink("natural")],
            "signs": [uplink("sign")],
        },
        costs=("rounds", "MB up"),
    ),
    "signs": Condition(
        "Attack: a fifth of the clients send flipped signs, four times as long",
        attack("sign_flipping", scale=4.0),
        DEFENCES,
        costs=(),
    ),
    "alie": Condition(
        "Attack: a fifth of the clients stay within the spread of the others (ALIE, z = 1.5)",
        attack("alie", z=1.5),
        DEFENCES,
        costs=(),
    ),
    "honest": Condition(
        "The same clients and defences without an attack",
        {**FULL, **labels(1.0)},
        DEFENCES,
        costs=(),
    ),
    "privacy": Condition(
        "Privacy: 150 clients, each taking part with probability 0.2, delta = 0.001",
        {
            "problem": {"partition": {"alpha": 10.0, "clients": 150, "min_samples": 4}},
            "participation": {"kind": "bernoulli", "probability": 0.2, "weighting": "uniform"},
        },
        {
            "clipping without noise": [privacy("client_level", clip_norm=0.5, noise_multiplier=0.0)],
            **{
                f"client level, epsilon {epsilon}": [
                    privacy("client_level", clip_norm=norm, target_epsilon=epsilon) for norm in (0.3, 1.0)
                ]
                for epsilon in (20, 8, 2)
            },
            "DP-FTRL, epsilon 20": [
                {
                    **privacy("dp_ftrl", clip_norm=norm, target_epsilon=20),
                    "participation": {"kind": "cyclic", "clients_per_round": 30, "weighting": "uniform"},
                }
                for norm in (0.3, 1.0)
            ],
        },
        costs=("rounds",),
        others={"epsilon": "epsilon"},
    ),
    "personal": Condition(
        "Each client has its own test samples and may have its own model",
        {
            **labels(0.3),
            "participation": {"kind": "uniform", "clients_per_round": 10},
            "evaluation": {
                "measures": ["personal_accuracy", "personal_accuracy_worst_decile"],
                "every": 5,
                "population_every": 5,
            },
        },
        {
            "FedAvg, fine-tuned": [{"evaluation": {"fine_tuning": {"steps": 10}}}],
            "FedPer": [algorithm("fedper", head=1)],
            "LG-FedAvg": [algorithm("lg_fedavg", global_layers=1)],
            "FedRep": [algorithm("fedrep", head=1, body_steps=steps) for steps in (6, 10)],
            "Ditto": [algorithm("ditto", lam=lam) for lam in (0.1, 1.0)],
            "APFL": [algorithm("apfl", alpha=alpha) for alpha in (0.25, 0.5)],
            "Per-FedAvg": [algorithm("per_fedavg", alpha=alpha) for alpha in (0.05, 0.2)],
            "pFedMe": [algorithm("pfedme", lam=2.0, inner_lr=0.05)],
            "q-FedAvg (fair)": [algorithm("qfedavg", q=1.0, smoothness=each) for each in (1.0, 5.0)],
            "AFL (fair)": [algorithm("afl", mixture_lr=0.01)],
            "alone (Ditto, lambda 0)": [algorithm("ditto", lam=0.0)],
        },
        metric="personal_accuracy",
        costs=("rounds",),
        others=PERSONAL,
    ),
}
COSTS: Mapping[str, Callable[[Sequence[RoundReport]], list[float]]] = {
    "rounds": lambda rows: [row.round for row in rows],
    "MB": lambda rows: list(accumulate((row.bytes_up + row.bytes_down) / 1e6 for row in rows)),
    "MB up": lambda rows: list(accumulate(row.bytes_up / 1e6 for row in rows)),
    "seconds": lambda rows: [row.value("simulated_seconds") or 0.0 for row in rows],
}
"""The cost of a run after each round."""


def main(arguments: Sequence[str]) -> None:
    """Print a table for each condition, and write them where requested."""
    parser = command("which-method", __doc__)
    parser.add_argument(
        "--conditions", type=among(CONDITIONS), default=list(CONDITIONS), help="labels,time,..."
    )
    parser.add_argument("--seeds", type=int, default=5, help="paired seeds")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between their markers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    texts = []
    for name in options.conditions:
        texts.append(_section(CONDITIONS[name], range(options.seeds)))
        print(texts[-1], flush=True)
    if options.write is not None:
        report.put(options.write, "which-method", "\n\n".join(texts))


def _section(condition: Condition, seeds: Sequence[int]) -> str:
    """The table of a condition."""
    arms: dict[str, Document] = {"FedAvg": {}} | {
        name: _chosen(condition, each) for name, each in condition.arms.items()
    }
    runs = {name: [_played(condition, arm, seed) for seed in seeds] for name, arm in arms.items()}
    figures = [
        {seed: _tail(rows, condition.metric) for seed, rows in zip(seeds, each, strict=True)}
        for each in runs.values()
    ]
    beside = find_best_arms(figures, higher_is_better=True, scale=ComparisonScale.LOGIT, control=0).control
    rows = []
    for (name, each), values, comparison in zip(runs.items(), figures, beside, strict=True):
        costs = [
            median(
                _cost(played, condition.metric, figures[0][seed], column)
                for seed, played in zip(seeds, each, strict=True)
            )
            for column in condition.costs
        ]
        rows.append(
            [
                name + _parameters(condition.arms.get(name, ()), arms[name]),
                f"{100 * fmean(values.values()):.1f}",
                report.difference(comparison, "+.1f", 100),
                *(f"{cost:.3g}" if isfinite(cost) else "not reached" for cost in costs),
                *(_other(each, metric) for metric in condition.others),
            ]
        )
    headings = [
        "method",
        "accuracy, %",
        "difference from FedAvg",
        *condition.costs,
        *condition.others.values(),
    ]
    return f"### {condition.title}\n\n{report.table(headings, rows)}"


def _chosen(condition: Condition, candidates: Sequence[Document]) -> Document:
    """The candidate with the best figure on TUNING_SEED."""
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda arm: _tail(_played(condition, arm, TUNING_SEED), condition.metric))


def _played(condition: Condition, arm: Document, seed: int) -> Sequence[RoundReport]:
    """The rounds of an arm with one seed, which is that of the data, too."""
    changed = override(
        override(override(SPEC, condition.changes), arm), {"problem": {"partition": {"seed": seed}}}
    )
    return _rounds(json.dumps(changed | {"seeds": [seed]}))


@cache
def _rounds(document: str) -> Sequence[RoundReport]:
    """The rounds of a run."""
    return list(run(ExperimentSpec.model_validate_json(document)))


def _tail(rows: Sequence[RoundReport], metric: str) -> float:
    """The mean of a metric over the last rounds; 0 for an accuracy of a run that diverged."""
    if rows[-1].diverged:
        return 0.0
    values = [row.value(metric) for row in rows[-max(1, round(TAIL * len(rows))) :]]
    return fmean(value for value in values if value is not None)


def _cost(rows: Sequence[RoundReport], metric: str, target: float, column: str) -> float:
    """The cost of reaching the target; infinite where it was not reached."""
    reached = (
        spent
        for row, spent in zip(rows, COSTS[column](rows), strict=True)
        if (row.value(metric) or 0.0) >= target
    )
    return next(reached, inf)


def _other(runs: Sequence[Sequence[RoundReport]], metric: str) -> str:
    """The mean of a metric at the end, in per cent for accuracies; nothing where there is none."""
    values = [rows[-1].value(metric) for rows in runs]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{100 * fmean(known):.1f}" if "accuracy" in metric else f"{fmean(known):.3g}"


def _parameters(candidates: Sequence[Document], chosen: Document) -> str:
    """The values chosen, where there was a choice: the fields in which the candidates differ."""
    flat = [_flattened(each) for each in candidates]
    varied = {path for path in flat[0] for each in flat if each.get(path) != flat[0][path]} if flat else set()
    parts = [f"{path.rpartition('.')[2]} {_flattened(chosen)[path]}" for path in sorted(varied)]
    return f", {', '.join(parts)}" if parts else ""


def _flattened(document: Document, above: str = "") -> dict[str, Any]:
    """The fields of a document by dotted path."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        found |= _flattened(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return found
