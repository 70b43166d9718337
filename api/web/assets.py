"""`/static`: scripts and styles, under an address that changes with their content, so that browsers
may keep them for good.
"""

from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
FOREVER = "public, max-age=31536000, immutable"
DIGITS = 12


class Assets(StaticFiles):
    """The files below `FOLDER`, each at `/DIGEST/PATH`.

    What imports others by relative paths so gets those of the same release.
    """

    def __init__(self, digest: str) -> None:
        super().__init__(directory=FOLDER)
        self._digest = digest

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file; under the digest of another release it is not kept."""
        digest, _, rest = path.partition("/")
        response = await super().get_response(rest, scope)
        response.headers["Cache-Control"] = FOREVER if digest == self._digest else "no-cache"
        return response


def install(app: FastAPI) -> None:
    """Serve the files; `app.state.static` is where."""
    digest = digest_of(FOLDER)
    app.state.static = f"/static/{digest}"
    app.mount("/static", Assets(digest), name="static")


def digest_of(folder: Path) -> str:
    """The same for the same files under the same names."""
    total = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(
            f"{path.relative_to(folder).as_posix()}\0{sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()[:DIGITS]
