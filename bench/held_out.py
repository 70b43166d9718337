"""Run presets again on seeds that no record has used, and list the recorded verdicts that turn.

They run on the service that `fedq` finds, with as many seeds as their records have, from `--first`
on. A repetition of the command waits for the experiments of the first.

    python -m bench held-out PRESET [PRESET ...] [--first 1000] [--write]
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.options import command
from bench.records import read_records
from bench.report import put, table
from bench.reproductions import DOCS, FOLDER
from fedcore import presets
from fedcore.statistics.inequalities import ClaimOutcome
from fedq.client import Client
from fedq.reproductions.sheets import Record
from fedq.schemas import ClaimResult

FIRST = 1000
HEADINGS = ("preset", "seeds", "claims decided in the record", "the same", "not decided", "turned")


def main(arguments: Sequence[str]) -> None:
    """Print the table, and put it into docs/reproductions.md where requested."""
    parser = command("held-out", __doc__)
    parser.add_argument("presets", nargs="+", help="presets by name")
    parser.add_argument("--first", type=int, default=FIRST, help="the first of the seeds")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reproductions.md")
    options = parser.parse_args(arguments)
    records = read_records(FOLDER)
    with Client() as client:
        found = {name: _claims(client, records[name], options.first) for name in options.presets}
    text = "\n".join(compare({name: records[name] for name in found}, found))
    print(text)
    if options.write:
        put(DOCS / "reproductions.md", "held-out", text)


def _claims(client: Client, record: Record, first: int) -> Sequence[ClaimResult]:
    """The claims of a preset with their verdicts on held-out seeds."""
    seeds = list(range(first, first + len(record.seeds)))
    digest = presets.load(record.preset).digest
    experiment = client.submit(
        record.preset, {"seeds": seeds}, idempotency_key=f"held-out-{digest}-{first}-{len(seeds)}"
    )
    client.wait(experiment.id, progress=True)
    return client.claims(experiment.id).claims


def compare(records: Mapping[str, Record], found: Mapping[str, Sequence[ClaimResult]]) -> Iterator[str]:
    """Lines of Markdown: totals, a table by preset, and the claims whose verdicts turned."""
    counts: dict[str, Counter[str]] = {}
    turned = []
    for name, record in records.items():
        counts[name] = Counter()
        for recorded, again in zip(record.claims, found[name], strict=True):
            if recorded.verdict not in (ClaimOutcome.HOLDS, ClaimOutcome.DOES_NOT_HOLD):
                continue
            came = _came_out(recorded, again)
            counts[name][came] += 1
            if came == "turned":
                turned.append(f"- `{name}`: {recorded.says}: {recorded.verdict}, then {again.verdict}")
    total = sum(counts.values(), Counter())
    yield (
        f"Of {total.total()} decided verdicts, {total['the same']} came out the same on held-out seeds,"
        f" {total['not decided']} were not decided and {total['turned']} turned."
    )
    yield ""
    yield table(
        HEADINGS,
        [
            [
                f"`{name}`",
                str(len(records[name].seeds)),
                str(counted.total()),
                *(str(counted[came]) for came in HEADINGS[3:]),
            ]
            for name, counted in counts.items()
        ],
    )
    if turned:
        yield ""
        yield from turned


def _came_out(recorded: ClaimResult, again: ClaimResult) -> str:
    if again.verdict is recorded.verdict:
        return "the same"
    return "not decided" if again.verdict is ClaimOutcome.NOT_DECIDED else "turned"
