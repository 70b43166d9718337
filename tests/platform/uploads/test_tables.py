"""CSV, JSON lines and Parquet as pandas and R write them."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fedcore.data.description import description_rows
from fedcore.errors import UploadError
from fedcore.platform.uploads.local import read_local

FRAME = pd.DataFrame({"x": [0.5, 1.5, 2.5], "label": [0, 1, 0]}, index=[7, 3, 5])


def table(path: Path, **columns: str) -> dict[str, str]:
    return description_rows(read_local(str(path), columns, None).content)


def write(folder: Path, text: str, name: str = "own.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def csv_again(path: Path) -> None:
    FRAME.to_csv(path)
    pd.read_csv(path).to_csv(path, index=False)


@pytest.mark.parametrize(
    ("name", "save", "told"),
    [
        ("a.parquet", FRAME.to_parquet, "the column '__index_level_0__' is the index of a table"),
        (
            "a.parquet",
            FRAME.rename_axis("patient").to_parquet,
            "the column 'patient' is the index of a table",
        ),
        ("a.csv", FRAME.to_csv, "a column without a name is the index of a table"),
        ("a.csv", csv_again, "the column 'Unnamed: 0' is the index of a table"),
    ],
)
def test_the_index_of_pandas_is_refused(
    name: str, save: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    save(tmp_path / name)
    with pytest.raises(UploadError, match=f"{told}, not a feature: write the file with index=False"):
        table(tmp_path / name)


@pytest.mark.parametrize("frame", [FRAME.reset_index(drop=True), FRAME.rename_axis("client")])
def test_an_index_that_is_no_feature_is_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet")["features"] == "1: x"


def test_an_index_may_be_named_as_the_clients(tmp_path: Path) -> None:
    FRAME.rename_axis("patient").to_parquet(tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet", client="patient")["clients"] == (
        "patient, 3 clients: 3 (1 + 0), 5 (1 + 0), 7 (1 + 0)"
    )


def test_a_table_is_read_as_its_description_says(tmp_path: Path) -> None:
    """Test labels that end in a full stop, as those of UCI's Adult, are seen by their names."""
    path = write(
        tmp_path,
        "age,hours,income,site,fold\n30,40,<=50K,north,0\n50,45,>50K,south,0\n41,38,>50K.,north,1\n",
    )
    assert table(path, label="income", client="site", test="fold") == {
        "samples": "2 training + 1 test",
        "features": "2: age, hours",
        "label": "income, 3 classes: <=50K (1 + 0), >50K (1 + 0), >50K. (0 + 1)",
        "clients": "site, 2 clients: north (1 + 1), south (1 + 0)",
        "test samples": "each belongs to its client; 1 of 2 clients have some",
    }


@pytest.mark.parametrize("empty", ["", '""', "NA"])
@pytest.mark.parametrize("column", ["age", "label", "client", "test"])
def test_an_empty_cell_of_a_csv_file_is_refused_with_its_row(column: str, empty: str, tmp_path: Path) -> None:
    cells = {"age": "30", "label": ">50K", "client": "north", "test": "0"}
    lines = [cells.values(), {**cells, "label": "<=50K"}.values(), {**cells, column: empty}.values()]
    path = write(tmp_path, "\n".join(map(",".join, [cells, *lines])))
    with pytest.raises(UploadError, match=f"{column}: has 1 empty cell .*, in row 3 of the data"):
        table(path)


def test_an_empty_text_of_json_is_refused_with_its_row(tmp_path: Path) -> None:
    lines = '{"x": 1, "label": "a"}\n{"x": 2, "label": "b"}\n{"x": 3, "label": ""}\n'
    with pytest.raises(UploadError, match="label: is empty in row 3 of the data"):
        table(write(tmp_path, lines, "own.jsonl"))


def test_a_table_without_labels_is_refused_with_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "age,income\n1,0\n2,1\n")
    with pytest.raises(
        UploadError, match=r"there is no column 'label'; .* --column label=COLUMN: age, income"
    ):
        table(path)
