"""How the service describes itself."""

from functools import cache

from api.app import create_app
from fedcore.settings import Settings
from tests.documents import Document


@cache
def described() -> Document:
    """The OpenAPI document, to be read: it takes a second to make."""
    return create_app(Settings(_env_file=None)).openapi()
