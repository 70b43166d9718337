"""Compare FedQ with the plain PyTorch loop and other simulators, on W1 to W8, in turn.

python -m bench peers [--workloads W1,W2] [--contenders loop,flower] [--engine auto]
    [--pairs 9] [--minutes 12] [--json FILE] [--write PAGE]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench import limits, report
from bench.options import HOME, among, command
from bench.race import python_of, race
from bench.workloads import WORKLOADS

PEERS = ("flower", "fedlab", "pfl", "fedjax")
"""Those with an environment of their own."""
CONTENDERS = ("loop", "flower", "fedlab", "pfl", "pfl2", "fedjax")
"""`pfl2` is pfl-research in two processes."""


def main(arguments: Sequence[str]) -> None:
    """Print the results, and store them where requested."""
    options = _options(arguments)
    for name in options.contenders:
        python_of(name, options.home)  # Before the first of them has taken minutes.
    machine = limits.measure()
    command = " ".join(["python -m bench peers", *arguments])
    print(report.machine(machine, command), flush=True)
    sections, kept = {}, []
    share = options.minutes * 60 / sum(WORKLOADS[name].budget_s for name in options.workloads)
    for name in options.workloads:
        workload = WORKLOADS[name]
        able = [peer for peer in options.contenders if peer not in workload.without]
        contenders = [["fedq", options.engine], *([peer] for peer in able)]
        result = race(workload, options.home, contenders, options.pairs, workload.budget_s * share)
        sections[name] = report.section(result, machine)
        kept.append(asdict(result))
        print("\n" + sections[name], flush=True)
    if options.write is not None:
        for name, text in {"machine": report.machine(machine, command), **sections}.items():
            report.put(options.write, name, text)
    if options.json is not None:
        options.json.write_text(json.dumps({"limits": machine._asdict(), "workloads": kept}, indent=1))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = command("peers", __doc__)
    parser.add_argument("--workloads", type=among(WORKLOADS), default=list(WORKLOADS), help="W1,W2,...")
    parser.add_argument(
        "--contenders",
        type=among(CONTENDERS),
        default=list(CONTENDERS),
        help="loop,flower,...; FedQ is always one",
    )
    parser.add_argument("--engine", default="auto", help="FedQ's")
    parser.add_argument(
        "--pairs", type=int, default=9, help="timed turns of each contender, unless time runs out"
    )
    parser.add_argument(
        "--minutes", type=float, default=12.0, help="for the chosen workloads together; each has its share"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="where data and environments lie")
    parser.add_argument("--json", type=Path, help="keep the results in this file")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between its markers")
    return parser.parse_args(arguments)
