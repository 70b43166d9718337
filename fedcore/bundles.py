"""Code bundles: the files of a folder as one archive with a digest, and the components in them.

A bundle is sent with a submission. Archives are tar files without compression, and only the bytes
that `pack` writes are one, so a folder has one digest, and links, other owners, duplicates and
archives that grow when they are unpacked are refused by one comparison.
"""

import hashlib
import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from importlib import import_module, invalidate_caches
from inspect import isabstract
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import NamedTuple

from fedcore.block import KIND, LONGEST_KIND, Block, kind_of
from fedcore.errors import ExtensionError
from fedcore.installed_modules import replace_installed

MAX_FILES = 500
MAX_BYTES = 16 << 20
"""Maximum size of all files together, in bytes."""
MAX_NAME_LENGTH = 99
"""Bytes of a file's path in the folder, as every version of tar can store it."""
PREFIX = "sha256:"
MAX_ARCHIVE_BYTES = MAX_BYTES + (1 << 20)
"""Maximum size of an archive: MAX_BYTES, with room for the headers of MAX_FILES files, and the
padding after each.
"""


class BundleFile(NamedTuple):
    """A file of a bundle."""

    name: str
    """Path in the folder, with slashes."""
    size: int
    """Bytes."""
    sha256: str


def pack(folder: Path) -> bytes:
    """The archive of `folder`.

    Left out are hidden files and folders, `__pycache__`, `*.pyc`, `*.egg-info` and virtual
    environments. Raises ExtensionError for links, other special files, unsuitable names, and more
    than MAX_FILES files or MAX_BYTES.
    """
    if not folder.is_dir():
        raise ExtensionError(f"{folder} is not a folder")
    files: dict[str, bytes] = {}
    total = 0
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            raise ExtensionError(f"{name} is not a regular file; bundles contain no links or special files")
        total += path.stat().st_size
        _check_extent(len(files) + 1, total)
        files[name] = path.read_bytes()
    return _archive(files)


def unpack(data: bytes, folder: Path) -> None:
    """Write the files of an archive to the empty folder `folder`, read-only; raises ExtensionError."""
    for name, content in _read(data).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o444)


def digest(data: bytes) -> str:
    """Name of an archive: `sha256:` and the SHA-256 of its bytes."""
    return PREFIX + hashlib.sha256(data).hexdigest()


def storage_key(bundle_id: str, digest: str) -> str:
    """Where an archive is stored.

    By its id too: what deletes the file of one never deletes that of a later upload of the same
    content.
    """
    return f"bundles/{bundle_id}-{digest.removeprefix(PREFIX)}.tar"


def list_files(data: bytes) -> list[BundleFile]:
    """The files of an archive, by name; raises ExtensionError if it is not an archive of `pack`."""
    return [
        BundleFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in _read(data).items()
    ]


def load(folder: Path, families: Mapping[str, type[Block]]) -> dict[str, dict[str, type[Block]]]:
    """Import the modules of `folder`, and return the components that they define, by family and
    kind. `families` are the base classes.

    A component is a class with a `kind` of its own that is defined, not imported, in a module. Modules are
    imported by their path in the folder (`rules/fedexp.py` is `rules.fedexp`), from which they may
    import each other. Not imported are tests (`test_*.py`, `conftest.py`, the folder `tests`),
    `setup.py`, `__main__.py` and files whose path is not a module name.

    They take the place of installed modules of the same name in this process, as an edited copy of an
    installed package does; see `replace_installed`.

    Raises ExtensionError where there is no component, a kind is no name, two have the same kind, or a
    module has the name of one that FedQ needs; and whatever the modules raise.
    """
    found: dict[str, dict[str, type[Block]]] = {}
    for module in _modules(folder.absolute()):
        for family, member in _components(module, families):
            known = found.setdefault(family, {})
            kind = kind_of(member)
            if len(kind) > LONGEST_KIND or not re.fullmatch(KIND, kind):
                raise ExtensionError(
                    f"{member.__module__}.{member.__name__} has the kind {kind!r}; use at most {LONGEST_KIND}"
                    " small letters, digits and _, beginning with a letter"
                )
            if known.setdefault(kind, member) is not member:
                raise ExtensionError(
                    f"{known[kind].__module__}.{known[kind].__name__} and {member.__module__}"
                    f".{member.__name__} have the same kind {kind!r} ({family}); rename one"
                )
    if not found:
        raise ExtensionError(
            "the bundle defines no component: a class with a `kind` that extends a base class of a family ("
            f"{', '.join(families)})"
        )
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix in (".pyc", ".egg-info") or path.name == "__pycache__":
            continue
        if path.is_dir() and not path.is_symlink():
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path)
        else:
            yield path


def _archive(files: Mapping[str, bytes]) -> bytes:
    """The only archive with these files."""
    if "__init__.py" in files:
        raise ExtensionError("the folder is itself a package (it has __init__.py); give the folder above it")
    if not any(name.endswith(".py") for name in files):
        raise ExtensionError("the folder contains no Python file (*.py)")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            _check_name(name, files)
            header = tarfile.TarInfo(name)
            header.size, header.mode = len(files[name]), 0o444
            archive.addfile(header, io.BytesIO(files[name]))
    return buffer.getvalue()


def _read(data: bytes) -> dict[str, bytes]:
    """The files of an archive, by name; raises ExtensionError."""
    if len(data) > MAX_ARCHIVE_BYTES:
        raise ExtensionError(f"a bundle has at most {MAX_BYTES} bytes; leave out data and results")
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                total += member.size
                _check_extent(len(files) + 1, total)
                content = archive.extractfile(member) if member.type == tarfile.REGTYPE else None
                if content is None:
                    raise ExtensionError(f"{member.name!r} in the archive is not a regular file")
                files[member.name] = content.read()
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        raise ExtensionError(f"not a bundle: {error}") from error
    if _archive(files) != data:
        raise ExtensionError("not a bundle as `fedcore.bundles.pack` writes it")
    return files


def _check_extent(count: int, total: int) -> None:
    if count > MAX_FILES:
        raise ExtensionError(f"a bundle has at most {MAX_FILES} files; leave out data and results")
    if total > MAX_BYTES:
        raise ExtensionError(f"a bundle has at most {MAX_BYTES} bytes; leave out data and results")


def _check_name(name: str, files: Mapping[str, bytes]) -> None:
    path = PurePosixPath(name)
    plain = (
        not path.is_absolute()
        and path.as_posix() == name
        and not {"..", "."} & set(path.parts)
        and "\\" not in name
        and name.isprintable()
        and 0 < len(os.fsencode(name)) <= MAX_NAME_LENGTH
    )
    if not plain:
        raise ExtensionError(
            f"file name {name!r} is not allowed: use a relative path of at most {MAX_NAME_LENGTH} bytes"
            " without '..', backslashes and control characters"
        )
    if any(parent.as_posix() in files for parent in path.parents):
        raise ExtensionError(f"{name!r} is a file and in a folder of the same name")


def _modules(folder: Path) -> Iterator[ModuleType]:
    """Import the modules of `folder`, in order of their names."""
    # Behind what is installed, whose place only those take that `replace_installed` accepts.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    invalidate_caches()
    files = {name: path for path in _walk(folder) if (name := _module_name(path.relative_to(folder)))}
    replace_installed(folder, {name.partition(".")[0] for name in files})
    for name, path in files.items():
        module = import_module(name)
        if not Path(module.__file__ or "").is_relative_to(folder):
            raise ExtensionError(
                f"{path.relative_to(folder)}: an installed module is called {name}; rename the file or its"
                " folder"
            )
        yield module


def _module_name(path: Path) -> str | None:
    """The name of the module in a file of the folder; None for files that are not imported."""
    parts = path.with_suffix("").parts
    if path.suffix != ".py" or not _is_imported(parts):
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_imported(parts: tuple[str, ...]) -> bool:
    tests = parts[-1].startswith("test_") or parts[-1] in ("conftest", "setup", "__main__")
    return all(part.isidentifier() for part in parts) and not tests and "tests" not in parts[:-1]


def _components(module: ModuleType, families: Mapping[str, type[Block]]) -> Iterator[tuple[str, type[Block]]]:
    for member in vars(module).values():
        if not isinstance(member, type) or member.__module__ != module.__name__ or isabstract(member):
            continue
        for family, base in families.items():
            if issubclass(member, base) and _has_own_kind(member):
                yield family, member


def _has_own_kind(member: type[Block]) -> bool:
    """True for a class with a `kind` that is not that of the class it extends."""
    kind, *inherited = [
        str(each.model_fields["kind"].annotation)
        for each in member.__mro__
        if issubclass(each, Block) and "kind" in each.model_fields
    ] or [""]
    return kind.startswith("typing.Literal") and kind not in inherited
