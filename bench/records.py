"""Records of what came out of the presets that follow papers, one file per paper in
docs/reproductions, and the pages about them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from fedcore import presets
from fedcore.block import Block
from fedcore.presets.sheet import SMALL, Sheet, list_variants
from fedcore.spec import yaml_documents
from fedcore.statistics.inequalities import ClaimOutcome
from fedq.reproductions.report import section
from fedq.reproductions.sheets import Record

NOT_RUN = "not-run.yaml"
NOT_YET = "not yet"
"""Placeholder for a missing reason; a test asserts that there is none."""
PICTURE = "webp"
PAPERS = {
    "asynchronous": "Asynchronous federated learning (FedAT, FedAsync)",
    "client": "Client selection (Oort, FedCS, optimal sampling, DivFL)",
    "compressed": "Compressed uplinks (natural compression, EF21)",
    "local": "Local training (FedDC, Mime, FedSAM, FedExP; MOON, FedNTD, FedLC, FedRS, FedDecorr, FedCM)",
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
    records = read_records(folder)
    return "\n".join(_overview(_followed(), records, folder.name))


def pages(folder: Path) -> dict[str, str]:
    """Markdown of all records in `folder`, one page per paper, by file name."""
    records = read_records(folder)
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


def paper_of(name: str) -> str:
    """Paper that a sheet or preset belongs to, by the beginning of its name."""
    return next(paper for paper in PAPERS if name.startswith(f"{paper}-"))


def read_records(folder: Path) -> dict[str, Record]:
    """Read all records in `folder`, by the names of their presets."""
    return {name: record for paper in PAPERS for name, record in _read(_path(folder, paper)).items()}


def write_record(record: Record, folder: Path) -> Path:
    """Put a record into the file of its paper, in place of the preset's earlier one; return the path."""
    path = _path(folder, paper_of(record.preset))
    records = _read(path) | {record.preset: record}
    path.write_bytes(_RECORDS.dump_json(dict(sorted(records.items())), indent=1) + b"\n")
    return path


_RECORDS = TypeAdapter(dict[str, Record])


def _read(path: Path) -> dict[str, Record]:
    return _RECORDS.validate_json(path.read_bytes()) if path.exists() else {}


def _path(folder: Path, paper: str) -> Path:
    return folder / f"{paper}.json"


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
    told = "claims that hold / do not / are not decided"
    yield f"| figure or table | in full: panels run, {told} | small: panels run, {told} |"
    yield "| --- | --- | --- |"
    for name, sheet in sheets.items():
        full, small = (
            [name + variant.suffix for variant in list_variants(sheet) if variant.small is small]
            for small in (False, True)
        )
        link = f"[`{name}`]({at}/{paper_of(name)}.md#{name})"
        yield f"| {link} | {_tally(full, records)} | {_tally(small, records)} |"


def _totals(sheets: Mapping[str, Sheet], records: Mapping[str, Record]) -> Iterator[str]:
    for small, form in ((False, "in full"), (True, "in the small form")):
        names = [
            name + variant.suffix
            for name, sheet in sheets.items()
            for variant in list_variants(sheet)
            if variant.small is small
        ]
        run = [records[name] for name in names if name in records]
        claims = [claim for kept in run for claim in kept.claims]
        counted = Counter(claim.verdict for claim in claims)
        yield (
            f"- {form}: {len(run)} of {len(names)} panels run, {len(names) - len(run)} not; of {len(claims)}"
            f" claims {counted[ClaimOutcome.HOLDS]} hold, {counted[ClaimOutcome.DOES_NOT_HOLD]} do not, and"
            f" {counted[ClaimOutcome.NOT_DECIDED]} are not decided"
        )
    yield ""


def _tally(names: Sequence[str], records: Mapping[str, Record]) -> str:
    run = [records[name] for name in names if name in records]
    claims = [claim for kept in run for claim in kept.claims]
    if not names:
        return "as in full"
    counted = Counter(claim.verdict for claim in claims)
    return f"{len(run)} of {len(names)}" + (
        f", {' / '.join(str(counted[outcome]) for outcome in ClaimOutcome)}" if run else ""
    )


def _sheet(
    name: str, sheet: Sheet, records: Mapping[str, Record], reasons: Mapping[str, str], shown: Sequence[str]
) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield f"{sheet.title}. {sheet.source}."
    yield from (f"\n![{sheet.title}]({picture})" for picture in shown)
    for preset in (presets.load(name + variant.suffix) for variant in list_variants(sheet)):
        if preset.name in records:
            yield f"\n### {preset.name}\n"
            yield from section(records[preset.name], preset)
    missing = [
        preset
        for preset in (name + variant.suffix for variant in list_variants(sheet))
        if preset not in records
    ]
    if missing:
        yield "\nNot run:\n"
        yield from (f"- `{preset}`: {reasons.get(preset, NOT_YET)}" for preset in missing)
