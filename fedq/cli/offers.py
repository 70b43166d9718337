"""`fedq presets` and `catalogue`."""

from typing import Annotated

import typer
import yaml

from fedq.cli import completion, views
from fedq.cli.connection import connect
from fedq.cli.terminal import AsJson, print_json, show
from fedq.schemas import Catalog, CatalogBlock

PresetName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Print the specification of this preset as YAML.",
        autocompletion=completion.presets,
    ),
]
BlockPath = Annotated[
    str | None, typer.Argument(metavar="[BLOCK]", help="Show the kinds of one block, e.g. problem.dataset.")
]


def presets(name: PresetName = None, as_json: AsJson = False) -> None:
    """List the presets, or print one as YAML."""
    with connect() as client:
        if name is None:
            show(client.presets(), views.presets, as_json=as_json)
            return
        preset = client.preset(name)
    if as_json:
        print_json(preset)
    else:
        typer.echo(yaml.safe_dump(preset.specification, sort_keys=False, allow_unicode=True), nl=False)


def catalogue(block: BlockPath = None, as_json: AsJson = False) -> None:
    """List all algorithms, data sets, models and other components of a specification."""
    with connect() as client:
        catalog = client.catalogue()
    if block is not None:
        show(_block(catalog, block), views.kinds, as_json=as_json)
    elif as_json:
        print_json(catalog)
    else:
        show(catalog.blocks, views.blocks, as_json=False)


def _block(catalog: Catalog, path: str) -> CatalogBlock:
    blocks = {block.path: block for block in catalog.blocks}
    if path not in blocks:
        raise typer.BadParameter(f"must be one of {', '.join(blocks)}, not {path!r}", param_hint="BLOCK")
    return blocks[path]
