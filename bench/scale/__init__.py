"""The service on a large database: times beside those on one with a single owner, and claims of many
workers.

A PostgreSQL of its own, as it is by default, gets two databases. One is filled with experiments of
10 runs that have finished, whose rounds are in blocks, and for each owner one experiment that
waits; the other has one owner with as many, so that pages are as long. Each has one more experiment
that waits in a queue of its own. The same requests go to an API over each, one at a time. Then
workers, each with a connection of its own, claim runs of the full database, have them for
`--run-seconds` on average, commit a round and finish, first directly, then through PgBouncer where
it is installed, for twice that time. They are threads of one process, which carries out about 20
runs a second; real workers have processors of their own. Other measurements end after `--seconds`
or 1,000 times. 1,000 owners with 100,000 experiments of 1,000 rounds take 120 GB of disk, more
where rounds are no multiple of 200, the size of a block; nothing is started if the database would
take more than half of what is free.

    python -m bench scale [--owners 100] [--experiments 1000] [--rounds 200] [--workers 100]
                          [--run-seconds 60] [--seconds 5] [--write docs/performance.md]
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.options import command
from bench.scale.claims import Claims, simulated_claims
from bench.scale.fill import BYTES_PER_ROUND, RUNS, Sizes, fill, size_of
from bench.scale.requests import measured
from fedcore.platform.store import upgrade
from tests.support.postgresql import fresh_database, postgresql

HEADINGS = ("what", "one owner: p50, ms", "p99, ms", "all: p50, ms", "p99, ms", "all / one")
CLAIM_HEADINGS = (
    "workers",
    "connections to PostgreSQL",
    "claims a second",
    "p50, ms",
    "p99, ms",
    "runs of an owner",
    "of a worker",
)


def main(arguments: Sequence[str]) -> None:
    """Fill, measure, print, and write the tables where requested."""
    parser = command("scale", __doc__)
    parser.add_argument("--owners", type=int, default=100)
    parser.add_argument("--experiments", type=int, default=1_000, help=f"of {RUNS} runs each")
    parser.add_argument("--rounds", type=int, default=200, help="of each run")
    parser.add_argument("--workers", type=int, default=100, help="that claim at a time")
    parser.add_argument("--run-seconds", type=float, default=60.0, help="that a worker has a run")
    parser.add_argument("--seconds", type=float, default=5.0, help="longest time of a measurement")
    parser.add_argument("--write", type=Path, help="put the tables into this page, between their markers")
    options = parser.parse_args(arguments)
    sizes = Sizes(options.owners, options.experiments, options.rounds)
    needed = sizes.rounds_in_all * BYTES_PER_ROUND
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free / 2:
        sys.exit(f"{sizes} would take {needed / 1e9:.0f} GB of the {free / 1e9:.0f} GB that are free")
    with (
        postgresql(durable=True, max_connections=options.workers + 100) as server,
        fresh_database(server, "single") as single,
        fresh_database(server, "full") as full,
    ):
        for url in (single, full):
            upgrade(url)
        few = fill(single, Sizes(1, max(1, sizes.experiments // sizes.owners), sizes.rounds))
        many = fill(full, sizes)
        about = f"{sizes}; {size_of(full) / 1e9:.2f} GB"
        print(about, flush=True)
        before, after = measured(single, few, options.seconds), measured(full, many, options.seconds)
        rows = [
            [name, *_milliseconds(before[name]), *_milliseconds(times), f"{_ratio(before[name], times):.1f}"]
            for name, times in after.items()
        ]
        for row in (HEADINGS, *rows, CLAIM_HEADINGS):
            print(*row, sep="  ", flush=True)
        claimed = []
        for claims in simulated_claims(full, options.workers, options.run_seconds):
            claimed.append(_claim_row(claims))
            print(*claimed[-1], sep="  ", flush=True)
    if options.write is not None:
        text = f"{about}.\n\n{report.table(HEADINGS, rows)}\n\n{report.table(CLAIM_HEADINGS, claimed)}"
        report.put(options.write, "scale", text)


def _milliseconds(times: Sequence[float]) -> list[str]:
    return [f"{1e3 * quantile:.1f}" for quantile in quantiles(times)]


def quantiles(times: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _ratio(single: Sequence[float], full: Sequence[float]) -> float:
    return quantiles(full)[0] / quantiles(single)[0]


def _spread(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def _claim_row(found: Claims) -> list[str]:
    return [
        f"{found.workers:,}",
        found.connections,
        f"{len(found.seconds) / found.wall_s:.0f}",
        *_milliseconds(found.seconds),
        _spread(found.by_owner),
        _spread(found.by_worker),
    ]
