"""Reports on reproduced sheets as Markdown: of one run, and the pages of all recorded outcomes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from fedcore import presets
from fedcore.block import Block
from fedcore.presets import PresetSpec
from fedcore.presets.sheet import SMALL, Sheet, variants
from fedcore.spec import yaml_documents
from fedq.reproductions.sheets import Record, SheetReproduction, read_record, record
from fedq.results.presentation import counted, grounds, measured, published, subject, verdict
from fedq.schemas import ClaimResult, PublishedTable


def report(reproduction: SheetReproduction, picture: str | None) -> str:
    """Report on a sheet: runs, figure, published numbers, and a verdict for each claim."""
    return "\n".join(_lines(reproduction, picture)) + "\n"


def _lines(reproduction: SheetReproduction, picture: str | None) -> Iterator[str]:
    sheet = reproduction.sheet
    yield f"# {sheet.title}"
    yield ""
    yield (
        f"{sheet.source}. Run again by `fedq reproduce-paper"
        f" {reproduction.name}{' --small' if reproduction.small else ''}`."
    )
    if picture:
        yield f"\n![{sheet.title}]({picture})"
    for part in reproduction.parts:
        if len(reproduction.parts) > 1:
            yield f"\n## {part.title[0].upper()}{part.title[1:]}"
        yield ""
        yield from section(record(part), part.preset)


def section(kept: Record, preset: PresetSpec) -> Iterator[str]:
    """Section on one panel: its runs, departures from the source, and outcome."""
    data, engines = ", ".join(kept.data) or "its own data", " and ".join(kept.engines)
    seeds = f"seed{'s' if len(kept.seeds) > 1 else ''} {', '.join(map(str, kept.seeds))}"
    yield (
        f"Preset `{kept.preset}`, version {kept.version}: {data}; {counted(kept.rounds, 'round')}, {seeds};"
        f" {engines}; {kept.status}."
    )
    if preset.departures:
        yield "\nDepartures from the source:\n"
        yield from (f"- {departure}" for departure in preset.departures)
    if kept.claims:
        yield "\n| claim | | what came out |\n| --- | --- | --- |"
        yield from map(_claim, kept.claims)
    for table in kept.published:
        yield from _table(table)
    if kept.diverged:
        diverged = (
            f"{arm} ({count} of {counted(len(kept.seeds), 'run')})" for arm, count in kept.diverged.items()
        )
        yield f"\nDiverged: {', '.join(diverged)}."
    if kept.unsuccessful:
        yield "\nRuns that did not succeed:\n"
        yield from (
            f"- `{arm}`: {', '.join(f'{count} {status}' for status, count in runs.items())}"
            for arm, runs in kept.unsuccessful.items()
        )


def _claim(claim: ClaimResult) -> str:
    told = "**" if claim.holds is False else ""
    return f"| {claim.says} ({claim.source}) | {told}{verdict(claim)}{told} | {'<br>'.join(grounds(claim))} |"


def _table(table: PublishedTable) -> Iterator[str]:
    yield f"\n{subject(table)}:"
    yield "\n| arm | published | here |\n| --- | --- | --- |"
    yield from (f"| {row.arm} | {published(row)} | {measured(row)} |" for row in table.rows)


NOT_RUN = "not-run.yaml"
NOT_YET = "not yet"
"""Placeholder for a missing reason; a test asserts that there is none."""
PICTURE = "webp"
PAPERS = {
    "asynchronous": "Asynchronous federated learning (FedAT, FedAsync)",
    "client": "Client selection (Oort, FedCS, optimal sampling, DivFL)",
    "compressed": "Compressed uplinks (natural compression, EF21)",
    "local": "Corrections of local steps (FedDC, Mime, FedSAM, FedExP)",
    "personal": "Personal models (FedPer, LG-FedAvg, FedRep, APFL, Per-FedAvg, pFedMe, q-FedAvg)",
    "privacy": "Mechanisms of privacy (adaptive clipping, DP-FTRL, local)",
    "robust": "Robust aggregators (Krum, median, trimmed mean, Bulyan, RFA, clipping, buckets)",
    "alie": "A Little Is Enough (Baruch et al., NeurIPS 2019)",
    "ditto": "Ditto (Li et al., ICML 2021)",
    "ifca": "IFCA (Ghosh et al., NeurIPS 2020)",
    "dp-fedavg": "DP-FedAvg (McMahan et al., ICLR 2018)",
    "fedavg-noniid": "FedAvg on non-IID data (Li et al., ICLR 2020)",
    "fedaware": "FedAWARE (Zeng et al.)",
    "fedbn": "FedBN (Li et al., ICLR 2021)",
    "fedbuff": "FedBuff (Nguyen et al., AISTATS 2022)",
    "fedlin": "FedLin (Mitra et al., NeurIPS 2021)",
    "fednova": "FedNova (Wang et al., NeurIPS 2020)",
    "fedprox": "FedProx (Li et al., MLSys 2020)",
    "power": "Power-of-choice (Cho et al., AISTATS 2022)",
    "tpe": "TPE (Bergstra et al., NIPS 2011)",
}
"""Titles of the pages, by the beginning of the names of their sheets."""


class NotRun(Block):
    """Presets that were not run here."""

    because: str
    """Reason."""
    presets: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the presets."""


def overview(folder: Path) -> str:
    """Markdown of the index: totals, and a table with links to the pages of `folder`."""
    records = _records(folder)
    return "\n".join(_overview(_followed(), records, folder.name))


def pages(folder: Path) -> dict[str, str]:
    """Markdown of all records in `folder`, one page per paper, by file name."""
    records = _records(folder)
    reasons = {name: reason.because for reason in not_run(folder) for name in reason.presets}
    sheets = _followed()
    return {
        f"{paper}.md": "\n".join(
            [
                f"# {title}\n",
                "Written by `python -m bench reproductions` ([all papers](../reproductions.md)).",
                *(
                    line
                    for name, sheet in sheets.items()
                    if paper_of(name) == paper
                    for line in _sheet(
                        name, sheet, records, reasons, [file.name for file in pictures(name, folder)]
                    )
                ),
            ]
        )
        + "\n"
        for paper, title in PAPERS.items()
    }


def paper_of(sheet: str) -> str:
    """Paper that a sheet belongs to, by the beginning of its name."""
    return next(paper for paper in PAPERS if sheet.startswith(f"{paper}-"))


def _records(folder: Path) -> dict[str, Record]:
    return {name: kept for name in presets.names() if (kept := read_record(name, folder)) is not None}


def _followed() -> dict[str, Sheet]:
    return {name: sheet for name, sheet in presets.sheets().items() if sheet.claims or sheet.published}


def not_run(folder: Path) -> Sequence[NotRun]:
    """Presets without a record, and the reasons."""
    return TypeAdapter(tuple[NotRun, ...]).validate_python(
        yaml_documents.load((folder / NOT_RUN).read_text(encoding="utf-8"))
    )


def pictures(sheet: str, folder: Path) -> list[Path]:
    """Existing figures of a sheet, the one of the full version first."""
    return [path for small in (False, True) if (path := picture(sheet, folder, small=small)).exists()]


def picture(sheet: str, folder: Path, *, small: bool) -> Path:
    """Path of the figure of a sheet."""
    return folder / f"{sheet}{f'-{SMALL}' if small else ''}.{PICTURE}"


def _overview(sheets: Mapping[str, Sheet], records: Mapping[str, Record], at: str) -> Iterator[str]:
    yield from _totals(sheets, records)
    yield "| figure or table | in full: panels run, claims that hold | small: panels run, claims that hold |"
    yield "| --- | --- | --- |"
    for name, sheet in sheets.items():
        full, small = (
            [name + variant.suffix for variant in variants(sheet) if variant.small is small]
            for small in (False, True)
        )
        link = f"[`{name}`]({at}/{paper_of(name)}.md#{name})"
        yield f"| {link} | {_tally(full, records)} | {_tally(small, records)} |"


def _totals(sheets: Mapping[str, Sheet], records: Mapping[str, Record]) -> Iterator[str]:
    for small, form in ((False, "in full"), (True, "in the small form")):
        names = [
            name + variant.suffix
            for name, sheet in sheets.items()
            for variant in variants(sheet)
            if variant.small is small
        ]
        run = [records[name] for name in names if name in records]
        claims = [claim for kept in run for claim in kept.claims]
        holding = sum(bool(claim.holds) for claim in claims)
        yield (
            f"- {form}: {len(run)} of {len(names)} panels run, {len(names) - len(run)} not; {holding} of"
            f" {len(claims)} claims hold"
        )
    yield ""


def _tally(names: Sequence[str], records: Mapping[str, Record]) -> str:
    run = [records[name] for name in names if name in records]
    claims = [claim for kept in run for claim in kept.claims]
    if not names:
        return "as in full"
    return f"{len(run)} of {len(names)}" + (
        f", {sum(bool(claim.holds) for claim in claims)} of {len(claims)}" if run else ""
    )


def _sheet(
    name: str, sheet: Sheet, records: Mapping[str, Record], reasons: Mapping[str, str], shown: Sequence[str]
) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield f"{sheet.title}. {sheet.source}."
    yield from (f"\n![{sheet.title}]({picture})" for picture in shown)
    for preset in (presets.load(name + variant.suffix) for variant in variants(sheet)):
        if preset.name in records:
            yield f"\n### {preset.name}\n"
            yield from section(records[preset.name], preset)
    missing = [
        preset for preset in (name + variant.suffix for variant in variants(sheet)) if preset not in records
    ]
    if missing:
        yield "\nNot run:\n"
        yield from (f"- `{preset}`: {reasons.get(preset, NOT_YET)}" for preset in missing)
