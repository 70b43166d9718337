"""`fedq model` and `export-model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedcore.lazy import LazyModule
from fedq.cli.connection import connect
from fedq.cli.local import Code
from fedq.cli.terminal import AsJson, checking, tell

if TYPE_CHECKING:
    from fedq import model_export
    from fedq.client.exports.sinks import WhichModel
    from fedq.local import code as components
else:
    components = LazyModule("fedq.local.code")
    model_export = LazyModule("fedq.model_export")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or a unique beginning of it.")]
RunOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, a unique beginning of it, or the folder runs/ARM-SEED of `fedq run`."
    ),
]
ModelFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Output file (default: ./RUN.safetensors, or ./RUN-best.safetensors).",
    ),
]
ExportPath = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="PATH", help="File or folder to write (default: ./RUN.onnx or ./RUN)."
    ),
]
Best = Annotated[bool, typer.Option("--best", help="The model of the best evaluated round.")]
Format = Annotated[
    Literal["onnx", "huggingface"],
    typer.Option("--format", "-f", help="An ONNX file, or a folder for transformers or peft."),
]
Merge = Annotated[bool, typer.Option("--merge", help="Add low-rank adapters to the weights of the network.")]
NetworkFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help=(
            "Uploaded weights, configuration or tokenizer that the run used; may be repeated (default:"
            " those in FEDQ_DATA_DIR)."
        ),
    ),
]


def model(run: RunId, output: ModelFile = None, best: Best = False, as_json: AsJson = False) -> None:
    """Download the final model of a run, or with --best the one of its best evaluated round, and print
    its path.
    """
    which = _which(best=best)
    with connect() as client:
        suffix = ".safetensors" if which == "final" else "-best.safetensors"
        path = client.save_model(run, output or Path(f"{client.run(run).id}{suffix}"), which=which)
    tell(path, as_json=as_json, file=path)


def export_model(
    run: RunOrFolder,
    to: Format,
    output: ExportPath = None,
    best: Best = False,
    merge: Merge = False,
    files: NetworkFiles = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of a run as an ONNX file, or as a folder for transformers or peft, and print its
    path.

    The network is built on this machine, which needs PyTorch.
    """
    which, folder = _which(best=best), Path(run)
    if code is not None:
        components.load_code(code)
    with checking("--merge"):
        if folder.is_dir():
            found = model_export.TrainedModel.in_folder(folder, which)
            path = output or Path(model_export.file_name_of(folder.absolute().name, to, which))
            model_export.export_model(found, to, path, merge=merge, files=files or ())
        else:
            with connect() as client:
                path = client.export_model(run, to, output, which=which, merge=merge, files=files or ())
    tell(path, as_json=as_json, file=path)


def _which(*, best: bool) -> WhichModel:
    return "best" if best else "final"
