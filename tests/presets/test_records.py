"""docs/reproductions says of every preset what came out of it, or why it was not run, and says what
is so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.results.claims import words
from fedcore import presets
from fedcore.platform.status import Status
from fedcore.presets import PresetSpec
from fedq.reproductions.report import not_run, overview, pages, paper_of
from fedq.reproductions.sheets import Record, read_record, write_record

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "reproductions"
SKIPPED = {name for reason in not_run(FOLDER) for name in reason.presets}


def following() -> Iterator[str]:
    """The presets that follow a publication."""
    for name in presets.names():
        sheet = presets.sheet(presets.load(name).sheet)
        if sheet.claims or sheet.published:
            yield name


RECORDED = [name for name in following() if read_record(name, FOLDER) is not None]


@pytest.fixture(params=RECORDED)
def preset(request: pytest.FixtureRequest) -> PresetSpec:
    return presets.load(request.param)


def kept(preset: PresetSpec) -> Record:
    found = read_record(preset.name, FOLDER)
    assert found is not None
    return found


def test_of_every_preset_is_kept_what_came_out_or_why_it_was_not_run() -> None:
    assert sorted([*RECORDED, *SKIPPED]) == sorted(following())


def test_files_are_of_presets_that_there_are() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RECORDED)


def test_what_was_run_is_the_preset_as_it_is(preset: PresetSpec) -> None:
    record = kept(preset)
    assert record.digest == preset.digest, (
        f"{preset.name} has changed: run `python -m bench reproductions {preset.name}`"
    )
    assert record.status is Status.SUCCEEDED


def test_verdicts_are_of_the_claims_as_they_are_and_failures_are_explained(preset: PresetSpec) -> None:
    claims = presets.sheet(preset.sheet).claims_of(preset.panel)
    failed = [preset.name in one.fails_in for one in claims]
    expected = [
        (one.says, [words(side) for side in one.comparisons], not fails, one.because if fails else None)
        for one, fails in zip(claims, failed, strict=True)
    ]
    told = [
        (one.says, [side.says for side in one.comparisons], one.holds, one.known_to_fail)
        for one in kept(preset).claims
    ]
    assert told == expected


def test_published_numbers_are_those_of_the_sheet(preset: PresetSpec) -> None:
    told = [
        {row.arm: (row.published_mean, row.published_std) for row in table.rows}
        for table in kept(preset).published
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
    assert all(path.stat().st_size < 64_000 for path in FOLDER.iterdir() if path.suffix != ".md")


def test_what_is_kept_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = kept(presets.load("fedprox-figure-1-synthetic"))
    write_record(record, tmp_path)
    assert read_record(record.preset, tmp_path) == record
    assert read_record("fedprox-figure-2", tmp_path) is None
