import httpx

from fedcore import presets
from fedcore.spec import ExperimentSpec


def test_presets_are_listed_by_name_with_their_sources(http: httpx.Client) -> None:
    listed = http.get("/v1/presets").json()["items"]
    assert [preset["name"] for preset in listed] == presets.names()
    assert all(preset["title"] and preset["source"] and preset["version"] >= 1 for preset in listed)


def test_a_preset_is_read_with_a_specification_that_can_be_run(http: httpx.Client) -> None:
    for name in presets.names():
        preset = http.get(f"/v1/presets/{name}").json()
        assert ExperimentSpec.model_validate(preset["specification"]).arms(), name


def test_a_preset_that_is_not_there_is_not_found(http: httpx.Client) -> None:
    answer = http.get("/v1/presets/domo")
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("there is no preset 'domo'; the nearest are demo, ")
