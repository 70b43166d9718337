"""docs/reproductions says of every preset what came out of it, or why it was not run, and says what
is so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.results.claims import words
from bench.records import PICTURE, not_run, overview, pages, paper_of, read_records, write_record
from fedcore import presets
from fedcore.platform.status import Status
from fedcore.presets import PresetSpec
from fedcore.statistics.inequalities import ClaimOutcome

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "reproductions"
RECORDS = read_records(FOLDER)
SKIPPED = {name for reason in not_run(FOLDER) for name in reason.presets}


def following() -> Iterator[str]:
    """The presets that follow a publication."""
    for name in presets.names():
        sheet = presets.sheet(presets.load(name).sheet)
        if sheet.claims or sheet.published:
            yield name


@pytest.fixture(params=sorted(RECORDS))
def preset(request: pytest.FixtureRequest) -> PresetSpec:
    return presets.load(request.param)


def test_every_preset_has_a_record_or_the_reason_why_it_was_not_run() -> None:
    assert sorted([*RECORDS, *SKIPPED]) == sorted(following())


def test_a_file_has_the_records_of_its_paper() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {paper_of(name) for name in RECORDS}
    assert all(name == record.preset for name, record in RECORDS.items())


def test_recorded_specification_is_the_preset_as_it_is(preset: PresetSpec) -> None:
    record = RECORDS[preset.name]
    assert record.digest == preset.digest, (
        f"{preset.name} has changed: run `python -m bench reproductions {preset.name}`"
    )
    assert record.status is Status.SUCCEEDED


def test_verdicts_are_of_the_claims_as_they_are_and_failures_are_explained(preset: PresetSpec) -> None:
    claims = presets.sheet(preset.sheet).claims_of(preset.panel)
    failed = [preset.name in one.fails_in for one in claims]
    expected = [
        (one.says, [words(side) for side in one.comparisons], fails, one.because if fails else None)
        for one, fails in zip(claims, failed, strict=True)
    ]
    told = [
        (
            one.says,
            [side.says for side in one.comparisons],
            one.verdict is ClaimOutcome.DOES_NOT_HOLD,
            one.known_to_fail,
        )
        for one in RECORDS[preset.name].claims
    ]
    assert told == expected


def test_published_numbers_are_those_of_the_sheet(preset: PresetSpec) -> None:
    told = [
        {row.arm: (row.published_mean, row.published_std) for row in table.rows}
        for table in RECORDS[preset.name].published
    ]
    published = presets.sheet(preset.sheet).published_of(preset.panel)
    assert told == [
        {arm: (number.mean, number.std) for arm, number in table.numbers.items()} for table in published
    ]


def test_the_index_and_a_page_per_paper_show_the_records() -> None:
    text = (DOCS / "reproductions.md").read_text(encoding="utf-8")
    assert overview(FOLDER) in text, "run `python -m bench reproductions`"
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(FOLDER), "run `python -m bench reproductions`"


def test_every_sheet_is_on_the_page_of_its_paper() -> None:
    written = pages(FOLDER)
    for preset in map(presets.load, following()):
        assert f"\n## {preset.sheet}\n" in written[f"{paper_of(preset.sheet)}.md"]


def test_pictures_are_no_burden() -> None:
    assert all(path.stat().st_size < 64_000 for path in FOLDER.glob(f"*.{PICTURE}"))


def test_a_record_is_read_as_it_was_written_beside_the_others_of_its_paper(tmp_path: Path) -> None:
    first, second = (RECORDS[f"fedprox-figure-{figure}"] for figure in ("1-synthetic", "2"))
    for record in (first.model_copy(update={"rounds": 1}), second, first):
        write_record(record, tmp_path)
    assert read_records(tmp_path) == {first.preset: first, second.preset: second}
    assert [path.name for path in tmp_path.iterdir()] == ["fedprox.json"]
