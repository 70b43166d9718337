"""`/sign-in` and `/sign-out`: store a key in a cookie of the browser, and delete it."""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from api.http import authentication
from api.http.dependencies import state_of
from api.http.documents import pieces_within
from api.web.rendering import render_page
from fedcore.errors import AuthenticationError
from fedcore.platform.access import Token

MAX_BYTES = 8_192

router = APIRouter(include_in_schema=False)

Next = Annotated[str, Query(alias="next", max_length=2_000)]


@router.get("/sign-in")
def ask(request: Request, wanted: Next = "/") -> Response:
    """Return the form.

    Its script signs in at once if the address contains a key after `#`, or the browser has one
    already.
    """
    return render_page(request, "sign-in.html", next=_inside(wanted), refusal=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Store the given key in a cookie if it is valid."""
    authentication.hold_same_origin(request)
    given = await _form(request)
    wanted = _inside(given.get("next", "/"))
    try:
        token = Token.parse(given.get("key", "").strip())
        await state_of(request).authenticator.authenticate(token)
    except AuthenticationError as error:
        return render_page(request, "sign-in.html", 401, next=wanted, refusal=str(error))
    response = RedirectResponse(wanted, 303)
    authentication.keep(request, response, token)
    return response


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    """Delete the cookie; the key stays valid."""
    authentication.hold_same_origin(request)
    response = RedirectResponse("/sign-in", 303)
    authentication.drop(request, response)
    return response


def _inside(wanted: str) -> str:
    """Return `wanted` if it is an address of this service, otherwise `/`."""
    # What begins with two slashes, or what browsers take for such, is another host's.
    own = (
        wanted.startswith("/") and not wanted.startswith("//") and "\\" not in wanted and wanted.isprintable()
    )
    return wanted if own else "/"


async def _form(request: Request) -> dict[str, str]:
    pieces = pieces_within(request, MAX_BYTES, f"The form exceeds {MAX_BYTES} bytes.")
    body = b"".join([piece async for piece in pieces])
    fields = parse_qs(body.decode(errors="replace"))
    return {name: values[-1] for name, values in fields.items()}
