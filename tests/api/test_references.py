"""Beginnings of ids, names and `@last` in the place of ids."""

import httpx
import pytest
from fastapi import FastAPI

from fedcore.platform.access import Scope
from fedcore.settings import Settings
from tests.builders.experiments import submit_over_http
from tests.builders.specifications import TINY, TWO_ARMS
from tests.support.access import key_for
from tests.support.asgi import calling


def _beginning(id: str, *others: str) -> str:
    """The shortest beginning of an id that no other has."""
    return next(id[:end] for end in range(5, 31) if not any(other.startswith(id[:end]) for other in others))


@pytest.mark.usefixtures("database_url")
def test_a_beginning_a_name_and_last_stand_for_an_id(
    http: httpx.Client, app: FastAPI, settings: Settings
) -> None:
    first = submit_over_http(http, TINY | {"name": "a & b? 100%"})["id"]
    second = submit_over_http(http, TWO_ARMS)["id"]
    for given, id in (
        (_beginning(first, second), first),
        (_beginning(second, first), second),
        ("a%20%26%20b%3F%20100%25", first),
        ("two arms", second),
        ("@last", second),
        ("@last~0", second),
        ("@last~1", first),
    ):
        assert http.get(f"/v1/experiments/{given}").json()["id"] == id, given
    runs = http.get("/v1/experiments/@last/runs").json()["items"]
    assert {run["experiment_id"] for run in runs} == {second}
    assert http.get("/v1/runs/@last").json()["id"] == max(run["id"] for run in runs)
    compared = http.get("/v1/compare", params={"arm": ["two arms:0", "a & b? 100%"]}).json()
    assert [member["experiment_id"] for member in compared["members"]] == [second, first]
    listed = http.get("/v1/arms", params={"experiment": ["@last"]}).json()["items"]
    assert {arm["experiment_id"] for arm in listed} == {second}

    for given in ("@last~2", "@last~-1", "@last~", "@last~1234567"):
        assert http.get(f"/v1/experiments/{given}").status_code == 404, given
    for given in ("two", "TWO AR"):
        begun = http.get(f"/v1/experiments/{given}")
        assert begun.status_code == 404
        assert begun.json()["detail"] == f"nothing has the name {given!r}; names that begin so: 'two arms'"
    absent = http.get("/v1/experiments/three arms")
    assert (absent.status_code, absent.json()["detail"]) == (404, "there is no experiment 'three arms'")
    several = http.get("/v1/experiments/exp_0")
    assert several.status_code == 404
    assert several.json()["detail"] == (
        f"'exp_0' is the beginning of several ids: {second}, {first}; give one of them"
    )
    namesake = submit_over_http(http, TWO_ARMS)["id"]
    several = http.delete("/v1/experiments/two arms")
    assert several.status_code == 404
    assert several.json()["detail"] == (
        f"'two arms' is the name of several: {namesake}, {second}; give one of them"
    )

    with calling(app, key_for(settings.database, owner="ann", scope=Scope.SUBMIT)) as ann:
        for given in ("@last", "@last~1", "exp_0", "two arms", _beginning(first, second, namesake)):
            assert ann.get(f"/v1/experiments/{given}").status_code == 404, given
        # Names of others are not told.
        assert "two arms" not in ann.get("/v1/experiments/two").text
        own = submit_over_http(ann, TINY)["id"]
        assert ann.get("/v1/experiments/exp_0").json()["id"] == own
        assert ann.delete("/v1/experiments/@last").status_code == 204
        assert ann.get(f"/v1/experiments/{own}").status_code == 404
    assert http.get("/v1/experiments/@last").json()["id"] == namesake
