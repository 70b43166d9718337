"""Run the presets that follow papers, record the outcomes in docs/reproductions, and write a page
per paper there and the index docs/reproductions.md.

They run on the service that `fedq` finds (`fedq up` starts one; FEDQ_URL names another). An
experiment of the current specification that has already succeeded there is reused. Without names,
only the pages are written.

    python -m bench reproductions [PRESET ...] [--ended]
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from bench.options import command
from bench.records import PICTURE, overview, pages, picture, read_records, write_record
from bench.report import put
from fedcore import presets
from fedcore.platform.status import Status
from fedcore.presets import PresetSpec
from fedcore.spec import ExperimentSpec
from fedcore.spec.search import Study
from fedq.client import Client
from fedq.reproductions.picture import draw
from fedq.reproductions.sheets import Part, SheetReproduction, collect, record

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "reproductions"
COLOURS = 32
LARGEST_BYTES = 60_000
SHRINK = 0.85
WIDTH = 900
"""Of a picture, in pixels, at most."""


def main(arguments: Sequence[str]) -> None:
    """Run the named presets, store them, and write the page."""
    parser = command("reproductions", __doc__)
    parser.add_argument("presets", nargs="*", help="presets by name")
    parser.add_argument(
        "--ended",
        action="store_true",
        help="keep those, too, of which an experiment has already succeeded there",
    )
    options = parser.parse_args(arguments)
    if options.presets or options.ended:
        with Client() as client:
            _keep(client, options.presets, ended=options.ended)
    put(DOCS / "reproductions.md", "reproductions", overview(FOLDER))
    for name, text in pages(FOLDER).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _keep(client: Client, names: Sequence[str], *, ended: bool) -> None:
    done = _succeeded(client)
    parts = [
        _part(client, presets.load(name), done)
        for name in (*names, *(done.keys() - set(names) if ended else ()))
    ]
    for part in parts:
        print(write_record(record(part), FOLDER))
        done[part.preset.name] = part.experiment.id
    for sheet, small in sorted({(part.preset.sheet, part.preset.small) for part in parts}):
        _picture(client, sheet, done, small=small)


def _succeeded(client: Client) -> dict[str, str]:
    """By preset, the newest experiment of its current specification that has succeeded."""
    found: dict[str, str] = {}
    known = {name: presets.load(name) for name in presets.names()}
    for summary in client.experiments(status=Status.SUCCEEDED):
        preset = known.get(summary.name)
        if preset is not None and preset.name not in found and _is_of(client, preset, summary.id):
            found[preset.name] = summary.id
    return found


def _is_of(client: Client, preset: PresetSpec, id: str) -> bool:
    experiment = client.experiment(id)
    stored, wanted = map(ExperimentSpec.model_validate, (experiment.specification, preset.spec))
    # The stored specification of a study names its proposals.
    same = _without_proposals(stored) == _without_proposals(wanted)
    return same and experiment.provenance.get("preset") == preset.name


def _without_proposals(spec: ExperimentSpec) -> ExperimentSpec:
    if not isinstance(spec.search, Study):
        return spec
    return spec.model_copy(update={"search": spec.search.model_copy(update={"proposed": ()})})


def _part(client: Client, preset: PresetSpec, done: Mapping[str, str]) -> Part:
    id = done.get(preset.name) or client.submit(preset.name).id
    return collect(client, preset, client.wait(id, progress=True))


def _picture(client: Client, name: str, done: Mapping[str, str], *, small: bool) -> None:
    """Draw all stored panels, or leave the picture as it is if one of them was run on another
    service.
    """
    sheet, path = presets.sheet(name), picture(name, FOLDER, small=small)
    if sheet.figure is None or (small and not _missing_in_full(name)):
        return
    recorded = read_records(FOLDER)
    panels = [preset for preset in presets.presets_of(name, small=small) if preset.name in recorded]
    if elsewhere := [preset.name for preset in panels if preset.name not in done]:
        print(
            f"{path} stays as it was: of {', '.join(elsewhere)} this service has no experiment that has"
            " succeeded"
        )
        return
    parts = [_part(client, preset, done) for preset in panels]
    path.write_bytes(_compressed(draw(SheetReproduction(name, small, sheet, parts), "png")))
    print(path)


def _missing_in_full(sheet: str) -> bool:
    """Return True if some panel is stored in its small form only, so that the figure of the small
    forms shows what no other does.
    """
    recorded = read_records(FOLDER)
    return any(preset.name not in recorded for preset in presets.presets_of(sheet, small=False))


def _compressed(drawn: bytes) -> bytes:
    """Compress without loss in few colours, the lines' own among them, so that the file is small."""
    image = Image.open(BytesIO(drawn)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH * image.height), Image.Resampling.LANCZOS)
    while True:
        packed = BytesIO()
        # One turn of k-means, without which pale bands get the colours of their neighbours.
        plain = image.quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        ).convert("RGB")
        plain.save(packed, PICTURE, lossless=True, quality=50, method=3)
        if packed.tell() <= LARGEST_BYTES:
            return packed.getvalue()
        image = image.resize(
            (round(image.width * SHRINK), round(image.height * SHRINK)), Image.Resampling.LANCZOS
        )
