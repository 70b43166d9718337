"""How the service describes itself."""

from functools import cache

from fastapi.routing import APIRoute

from api.app import KEYED
from tests.builders.specifications import Document
from tests.support.asgi import built


@cache
def described() -> Document:
    """The OpenAPI document, to be read: it takes seconds to make."""
    return built().openapi()


@cache
def operations() -> tuple[tuple[str, str], ...]:
    """Method and path of each operation that requires a key.

    They are read from the routes, without the document, since every process that collects tests
    lists them. `tests/api/test_access.py` compares both.
    """
    routes = [route for router in KEYED for route in router.routes if isinstance(route, APIRoute)]
    return tuple(
        (method.lower(), route.path_format)
        for route in routes
        if route.include_in_schema
        for method in sorted(route.methods or ())
    )
