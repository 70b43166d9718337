"""`fedq export` and `import`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedq.cli import connection
from fedq.cli.connection import connect
from fedq.cli.experiments import Code
from fedq.cli.lazy import local_code as components
from fedq.cli.lazy import model_export
from fedq.cli.terminal import AsJson, echo, print_json, tell

if TYPE_CHECKING:
    from fedq.client.exports.sinks import ModelForm, WhichModel

Subject = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|RUN",
        help=(
            "Experiment or, for its model, run: its id, a unique beginning of it, the experiment's name, or"
            " @last. For onnx and huggingface also the folder runs/ARM-SEED of `fedq run`."
        ),
        autocompletion=connection.complete_experiments,
    ),
]
Form = Literal[
    "fedq",
    "csv",
    "parquet",
    "tensorboard",
    "mlflow",
    "wandb",
    "optuna",
    "safetensors",
    "onnx",
    "huggingface",
]
To = Annotated[
    Form | None,
    typer.Option(
        "--to",
        help=(
            "Format. Of an experiment: a file for `fedq import` (default), tables, TensorBoard event files,"
            " an MLflow tracking store, offline runs of Weights & Biases, or an Optuna study. Of the model"
            " of a run: a safetensors file (default), an ONNX file, or a folder for transformers or peft."
        ),
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help=(
            "File or folder to write (default: ./EXPERIMENT.fedq.json.gz or ./EXPERIMENT-FORM; of a model"
            " ./RUN.safetensors, ./RUN.onnx or ./RUN)."
        ),
    ),
]
Tracking = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        help="MLflow tracking store, e.g. http://host:5000 (default: mlflow.db in the output folder).",
    ),
]
Models = Annotated[bool, typer.Option("--models", help="Include the final models as MLflow artifacts.")]
Best = Annotated[
    bool, typer.Option("--best", help="The model of the best evaluated round instead of the final one.")
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
WithoutCode = Annotated[bool, typer.Option("--without-code", help="Leave the code bundle out.")]
File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A .json or .json.gz file written by `fedq export EXPERIMENT`, or a folder of `fedq run`.",
    ),
]

FORMS_OF_OPTIONS = {
    "--tracking-uri": ("mlflow",),
    "--models": ("mlflow",),
    "--best": ("safetensors", "onnx", "huggingface"),
    "--merge": ("huggingface",),
    "--file": ("onnx", "huggingface"),
    "--code": ("onnx", "huggingface"),
    "--without-code": ("fedq",),
}


def export(  # noqa: PLR0913, PLR0917 - an option each
    subject: Subject,
    to: To = None,
    output: Output = None,
    tracking_uri: Tracking = None,
    models: Models = False,
    best: Best = False,
    merge: Merge = False,
    files: NetworkFiles = None,
    code: Code = None,
    without_code: WithoutCode = False,
    as_json: AsJson = False,
) -> None:
    """Export every round of every run of an experiment, or the model of a run, and print the path.

    Exporting again updates an existing export. For onnx and huggingface, the network is built on
    this machine, which needs PyTorch.
    """
    form: Form = to or ("safetensors" if subject.startswith("run_") else "fedq")
    given = (tracking_uri, models, best, merge, files, code, without_code)
    for (option, forms), value in zip(FORMS_OF_OPTIONS.items(), given, strict=True):
        if value and form not in forms:
            raise typer.BadParameter(
                f"is an option of {' and '.join(forms)}, not of {form}", param_hint=option
            )
    which: WhichModel = "best" if best else "final"
    where: str | Path
    match form:
        case "safetensors":
            where = _save_model(subject, output, which)
        case "onnx" | "huggingface":
            if code is not None:
                components.load_code(code)
            where = _export_model(subject, form, output, which, files or (), merge=merge)
        case _:
            with connect() as client:
                where = client.export(
                    subject, form, output, tracking_uri=tracking_uri, models=models, code=not without_code
                )
    tell(where, as_json=as_json, exported=where)


def _save_model(run: str, output: Path | None, which: WhichModel) -> Path:
    suffix = ".safetensors" if which == "final" else "-best.safetensors"
    with connect() as client:
        return client.save_model(run, output or Path(f"{client.run(run).id}{suffix}"), which=which)


def _export_model(
    run: str,
    form: ModelForm,
    output: Path | None,
    which: WhichModel,
    files: Sequence[Path],
    *,
    merge: bool,
) -> Path:
    folder = Path(run)
    if not folder.is_dir():
        with connect() as client:
            return client.export_model(run, form, output, which=which, merge=merge, files=files)
    found = model_export.TrainedModel.in_folder(folder, which)
    path = output or Path(model_export.file_name_of(folder.absolute().name, form, which))
    return model_export.export_model(found, form, path, merge=merge, files=files)


def import_(file: File, without_code: WithoutCode = False, as_json: AsJson = False) -> None:
    """Import an experiment from a file written by `fedq export`, or from a folder of `fedq run`, and
    print its id, and what is missing to run it again.

    Importing it again returns the same experiment. The code bundle in the file becomes one of yours.
    """
    with connect() as client:
        experiment = client.import_(file, code=not without_code)
    for missing in experiment.missing:
        echo(f"to run it again: {missing}", err=True)
    print_json(experiment) if as_json else echo(experiment.id)
