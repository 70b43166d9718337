"""Results as Markdown tables, written into a page between markers."""

import os
import platform
import re
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.limits import Limits
from bench.race import Entry, Race
from fedcore.statistics.best_set import ArmBeside, ArmVerdict

TITLES = {
    "fedq": "FedQ",
    "loop": "plain PyTorch loop",
    "flower": "Flower (Ray)",
    "fedlab": "FedLab",
    "pfl": "pfl-research",
    "pfl2": "pfl-research",
    "fedjax": "FedJAX",
}
HEADINGS = (
    "contender",
    "round, s",
    "a local step, us",
    "FedQ is faster by",
    "start, s",
    "first round, s",
    "peak memory, MB",
    "of the machine's limit",
    "model differs by",
)


def difference(one: ArmBeside, form: str, factor: float = 1.0) -> str:
    """Format the difference of an arm from the control, times a factor, with its simultaneous interval and
    the conclusion; `form` is that of numbers with their sign.
    """
    if one.difference is None or one.low is None or one.high is None:
        return ""
    apart, low, high = (format(factor * value, form) for value in (one.difference, one.low, one.high))
    return f"{apart} ({low} to {high})" + ("" if one.verdict is ArmVerdict.UNCLEAR else f", {one.verdict}")


def spread(values: Sequence[float], form: str) -> str:
    """Format median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def significant(value: float, digits: int = 3) -> str:
    """Format with this many significant digits, without an exponent where possible."""
    return f"{value:#.{digits}g}".rstrip(".") if 1e-4 <= abs(value) < 10**digits else f"{value:.0f}"


def machine(limits: Limits, command: str) -> str:
    """Describe the machine and the method."""
    software = f"{platform.system()}, Python {platform.python_version()}, torch {version('torch')}"
    limit = (
        f"{limits.gflops:.0f} GFLOP/s (float32 matrix product, all cores) and {limits.gigabytes_s:.1f} GB/s"
        " (streaming)"
    )
    return f"{_processor()}, {os.cpu_count()} cores; {software}. Measured limits: {limit}. `{command}`"


def _processor() -> str:
    """Return the processor's name and its widest vectors."""
    try:
        information = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*: (.*)$", information, re.MULTILINE)
    widest = next(
        (
            title
            for flag, title in (("avx512f", " with AVX-512"), ("avx2", " with AVX2"))
            if f" {flag} " in information
        ),
        "",
    )
    return (name[1] if name else platform.machine()) + widest


def section(race: Race, limits: Limits) -> str:
    """One workload's table."""
    ours, floors, together = race.entries[0], [limits.floor_s(*work) for work in race.work], race.together
    steps = statistics.median(played.steps for played in ours.turns) / together
    operations, traffic = (statistics.median(column) / together for column in zip(*race.work, strict=True))
    turns = (
        f"{len(race.work)} rounds"
        if together == 1
        else f"{len(race.work)} turns of {together} rounds, each as a round"
    )
    head = f"**{race.workload}.** {race.title}. "
    head += (
        f"Median of {turns}: {steps:.0f} local steps, {operations / 1e9:.3g} GFLOP and {traffic / 1e6:.3g} MB"
        " at least, "
    )
    head += f"so no faster than {1e3 * statistics.median(floors) / together:.3g} ms here."
    rows = [_row(entry, ours, floors, together) for entry in race.entries]
    return head + "\n\n" + table(HEADINGS, rows)


def _row(entry: Entry, ours: Entry, floors: Sequence[float], together: int) -> list[str]:
    seconds = [played.seconds for played in entry.turns]
    ratios = [played.seconds / own.seconds for played, own in zip(entry.turns, ours.turns, strict=True)]
    of_limit = [floor / played for floor, played in zip(floors, seconds, strict=True)]
    return [
        f"{TITLES[entry.name]}, {entry.note}",
        numbers([turn / together for turn in seconds]),
        significant(1e6 * statistics.median(played.seconds / played.steps for played in entry.turns)),
        "" if entry is ours else numbers(ratios),
        significant(entry.start_s, 2),
        significant(entry.first_s, 2),
        f"{entry.peak_bytes / 1e6:.0f}",
        f"{100 * statistics.median(of_limit):.2g} %",
        "" if entry is ours else f"{entry.difference:.0e}",
    ]


def numbers(values: Sequence[float]) -> str:
    """Median and range."""
    return (
        f"{significant(statistics.median(values))} ({significant(min(values))} to {significant(max(values))})"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(page: Path, name: str, text: str) -> None:
    """Replace the text in `page` between the markers of `name`.

    Raises ValueError if they are missing.
    """
    before = page.read_text(encoding="utf-8")
    begin, end = f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    replacement: Callable[[re.Match[str]], str] = lambda _: begin + text.rstrip() + "\n" + end  # noqa: E731
    after, found = pattern.subn(replacement, before)
    if found != 1:
        raise ValueError(f"{page} has the markers of {name} {found} times; they must be there once")
    page.write_text(after, encoding="utf-8")
