"""`fedq weights add`, `list`, `delete`, and `fedq bundle send`, `list`, `show`, `get`, `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedq.cli import views
from fedq.cli.connection import connect
from fedq.cli.terminal import (
    AsJson,
    Limit,
    echo,
    print_json,
    show,
    show_newest,
    tell,
)

WeightsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Safetensors file, config.json or tokenizer.json.")
]
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="SHA-256 of the file, sha256:...")]


def add_weights(file: WeightsFile, as_json: AsJson = False) -> None:
    """Upload pretrained weights, or the config.json or tokenizer.json of a network, and print the digest:
    for problem.model.weights, problem.model.configuration or problem.dataset.tokenizer.
    """
    with connect() as client:
        uploaded = client.upload_weights(file)
    print_json(uploaded) if as_json else echo(uploaded.digest)


def list_weights(limit: Limit = 20, as_json: AsJson = False) -> None:
    """List uploaded weights, configurations and tokenizers, newest first."""
    with connect() as client:
        show_newest(client.all_weights(), limit, views.weights, as_json=as_json)


def delete_weights(digest: Digest, as_json: AsJson = False) -> None:
    """Delete uploaded weights. Refused while an experiment of yours uses them."""
    with connect() as client:
        client.delete_weights(digest)
    tell(None, as_json=as_json, deleted=digest)


BundleFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with your own components.")]
BundleFile = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Tar file to write (default: ./DIGEST.tar, shortened)."
    ),
]


def send_bundle(folder: BundleFolder, as_json: AsJson = False) -> None:
    """Send a folder with your own components as a code bundle, and print its digest. `fedq submit
    --code FOLDER` sends it, too.
    """
    with connect() as client:
        sent = client.send_bundle(folder)
    print_json(sent) if as_json else echo(sent.digest)


def list_bundles(limit: Limit = 20, as_json: AsJson = False) -> None:
    """List code bundles, newest first."""
    with connect() as client:
        show_newest(client.bundles(), limit, views.bundles, as_json=as_json)


def show_bundle(digest: Digest, as_json: AsJson = False) -> None:
    """Show the files and components of a code bundle."""
    with connect() as client:
        show(client.bundle(digest), views.bundle, as_json=as_json)


def get_bundle(digest: Digest, output: BundleFile = None, as_json: AsJson = False) -> None:
    """Download a code bundle as a tar file and print its path."""
    where = output or Path(f"{digest.removeprefix('sha256:')[:12]}.tar")
    with connect() as client:
        client.download_bundle(digest, where)
    tell(where, as_json=as_json, bundle=digest, file=where)


def delete_bundle(digest: Digest, as_json: AsJson = False) -> None:
    """Delete a code bundle. Refused while an experiment of yours uses it."""
    with connect() as client:
        client.delete_bundle(digest)
    tell(None, as_json=as_json, deleted=digest)
