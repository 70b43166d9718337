"""The service under load: requests a second, rows a second, how late events come, and that nothing
is lost.

On the loopback, with PostgreSQL as it is by default (a commit is on disk before it is answered) and
one API process; what asks and what writes shares the machine's cores with them. Bounded: some 40
seconds.

- 10,000 runs wait throughout.
- POST: 32 connections submit experiments of one run, each as soon as it is answered; GET: they read
  those.
- Rows: 4 writers commit slices of 500 rows through `fedcore.platform.store` as workers do, as fast
  as they can.
- Together: 200 clients poll the rows of a run once a second, and 200 follow the events of an
  experiment, ten of each for every run of 20 experiments, while 4 writers commit 5 rounds of each
  of them twice a second. The delay of an event is from before the commit of its row until it is
  received.

Then every experiment that was answered with 201, every run and every row has to be in the database,
and every follower has to have had every row once and in order.

    python -m bench load [--seconds 4] [--backlog 10000] [--write docs/performance.md]
"""

from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import report
from bench.load.phases import Trial
from bench.load.service import service
from bench.options import command

HEADINGS = (
    "what",
    "a second",
    "p50, ms",
    "p99, ms",
    "API, cores",
    "PostgreSQL, cores",
    "asking, cores",
    "API, MB",
    "PostgreSQL, MB",
)


def main(arguments: Sequence[str]) -> None:
    """Measure, print a row for each phase, and write the table where requested."""
    parser = command("load", __doc__)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="that each kind of request is repeated for"
    )
    parser.add_argument("--backlog", type=int, default=10_000, help="runs that wait")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    with service() as running:
        rows = uvloop.run(Trial(running, options.seconds).play(options.backlog))
    if options.write is not None:
        report.put(options.write, "load", report.table(HEADINGS, rows))
