"""Code bundles: archives that are the same for the same files, and nothing else than archives."""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedcore import bundles
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import Block
from fedcore.data.partition import Partition
from fedcore.errors import ExtensionError

FILES = {
    "lab_rules.py": "from lab_helpers.text import NAME\n",
    "lab_helpers/__init__.py": "",
    "lab_helpers/text.py": "NAME = 'é'\n",
    "data/small.csv": "1,2\n",
}
COMPONENTS = """
from typing import Literal

from fedcore.algorithms.fedavg import FedAvg
from fedcore.algorithms.fedprox import FedProx


class Base(FedAvg):
    "Without a kind of its own; FedAvg's stays."


class {name}(Base):
    "FedAvg by another name."

    kind: Literal["{kind}"]
"""
FAMILIES: dict[str, type[Block]] = {"algorithms": AlgorithmSpec, "partitions": Partition}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return written(tmp_path / "lab", FILES)


@pytest.fixture(autouse=True)
def forgotten_modules(tmp_path: Path) -> Iterator[None]:
    """Modules that a test imports from its folder are not known to the next one."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    for name in ("lab_helpers", "rules"):
        sys.modules.pop(name, None)


def test_a_folder_comes_back_from_its_archive(lab: Path, tmp_path: Path) -> None:
    archive = bundles.pack(lab)
    bundles.unpack(archive, tmp_path / "copy")
    copied = {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_text() for path in _files(tmp_path / "copy")
    }
    assert copied == FILES
    assert bundles.pack(tmp_path / "copy") == archive
    assert [(file.name, file.size) for file in bundles.list_files(archive)] == [
        (name, len(FILES[name].encode())) for name in sorted(FILES)
    ]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_digest_depends_on_names_and_contents_alone(lab: Path, tmp_path: Path) -> None:
    archive = bundles.pack(lab)
    other = written(tmp_path / "other", dict(reversed(FILES.items())))
    for path in _files(other):
        path.chmod(0o755)
    for left_out in (".git/config", "__pycache__/x.pyc", "lab_helpers/y.pyc", "venv/pyvenv.cfg", "venv/z.py"):
        written(other, {left_out: "left out"})
    (other / "mylab.egg-info").mkdir()
    assert bundles.digest(bundles.pack(other)) == bundles.digest(archive)
    (other / "lab_rules.py").write_text("")
    assert bundles.digest(bundles.pack(other)) != bundles.digest(archive)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"data.csv": "1"}, "no Python file"),
        ({"__init__.py": "", "a.py": ""}, "itself a package"),
        ({"a.py": "", f"{'long' * 30}.py": ""}, "not allowed"),
        ({"a.py": "", "b\\c.py": ""}, "not allowed"),
        ({"a.py": "", "b\nc.py": ""}, "not allowed"),
        ({"a.py": "", **{f"{number}.csv": "" for number in range(bundles.MAX_FILES)}}, "at most 500 files"),
    ],
    ids=["no code", "package", "long name", "backslash", "control character", "many files"],
)
def test_an_unsuitable_folder_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(ExtensionError, match=said):
        bundles.pack(written(tmp_path / "unsuitable", files))


def test_links_and_large_files_are_refused(lab: Path) -> None:
    link = lab / "link.py"
    link.symlink_to("/etc/passwd")
    with pytest.raises(ExtensionError, match=r"link\.py is not a regular file"):
        bundles.pack(lab)
    link.unlink()
    with (lab / "large.bin").open("wb") as file:
        file.truncate(bundles.MAX_BYTES + 1)
    with pytest.raises(ExtensionError, match="at most 16777216 bytes"):
        bundles.pack(lab)
    with pytest.raises(ExtensionError, match="not a folder"):
        bundles.pack(lab / "lab_rules.py")


def _tar(*members: tuple[tarfile.TarInfo, bytes], mode: Any = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.USTAR_FORMAT) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _member(name: str, **attributes: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = 0o444
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    return member


GOOD = (_member("a.py"), b"")
HUGE = _member("sparse", type=tarfile.GNUTYPE_SPARSE)
ARCHIVES = {
    "nothing": b"",
    "no archive": b"x" * 2000,
    "cut": _tar(GOOD, (_member("b.py"), b"x" * 5000))[:2000],
    "absolute": _tar(GOOD, (_member("/tmp/b.py"), b"")),
    "upwards": _tar(GOOD, (_member("../b.py"), b"")),
    "dot": _tar(GOOD, (_member("./b.py"), b"")),
    "link": _tar(GOOD, (_member("b.py", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
    "hard link": _tar(GOOD, (_member("b.py", type=tarfile.LNKTYPE, linkname="a.py"), b"")),
    "device": _tar(GOOD, (_member("b.py", type=tarfile.CHRTYPE), b"")),
    "folder": _tar(GOOD, (_member("b", type=tarfile.DIRTYPE), b"")),
    "sparse": _tar(GOOD, (HUGE, b"")),
    "twice": _tar(GOOD, GOOD),
    "unsorted": _tar((_member("b.py"), b""), GOOD),
    "mode": _tar((_member("a.py", mode=0o4777), b"")),
    "time": _tar((_member("a.py", mtime=1), b"")),
    "owner": _tar((_member("a.py", uname="root"), b"")),
    "compressed": _tar(GOOD, mode="w:gz"),
    "file and folder": _tar(GOOD, (_member("b"), b""), (_member("b/c.py"), b"")),
    "more after its end": _tar(GOOD) + bytes(10240),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_only_what_pack_writes_is_an_archive(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExtensionError):
        bundles.unpack(ARCHIVES[name], tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_size_that_is_only_stated_takes_no_memory() -> None:
    member = _member("b.py")
    member.size = 1 << 32
    data = _tar(GOOD)[:512] + member.tobuf(tarfile.USTAR_FORMAT) + bytes(10240)
    with pytest.raises(ExtensionError, match="at most 16777216 bytes"):
        bundles.list_files(data)


def test_components_are_found_where_they_are_defined(tmp_path: Path) -> None:
    lab = written(
        tmp_path / "lab",
        {
            "lab_one.py": COMPONENTS.format(name="One", kind="one"),
            "rules/lab_two.py": COMPONENTS.format(name="Two", kind="two") + "\nfrom lab_one import One\n",
            "test_lab.py": "raise RuntimeError('tests are not imported')",
            "not-a-module.py": "raise RuntimeError('it has no module name')",
        },
    )
    found = bundles.load(lab, FAMILIES)
    names = {
        family: {kind: member.__name__ for kind, member in kinds.items()} for family, kinds in found.items()
    }
    assert names == {"algorithms": {"one": "One", "two": "Two"}}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"lab_a.py": "VALUE = 1"}, "defines no component"),
        (
            {name: COMPONENTS.format(name="Same", kind="same") for name in ("lab_b.py", "lab_c.py")},
            r"lab_b\.Same and lab_c\.Same have the same kind 'same'",
        ),
        ({"lab_d.py": COMPONENTS.format(name="Odd", kind="Odd")}, r"lab_d\.Odd has the kind 'Odd'"),
        ({"random.py": ""}, "the module random cannot take the place"),
    ],
    ids=["none", "twice", "no name", "name of a library"],
)
def test_a_bundle_without_clear_components_is_refused(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    with pytest.raises(ExtensionError, match=said):
        bundles.load(written(tmp_path / "lab", files), FAMILIES)
