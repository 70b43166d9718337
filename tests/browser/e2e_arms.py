"""The table of arms: found, sorted, filtered, grouped, and taken home; and one with 10,000 rows."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Opened, Shoot, Stack, hold_accessible, hold_narrow, ready
from tests.builders.specifications import SYNTHETIC, merged

SWEPT = merged(
    SYNTHETIC,
    {
        "name": "Step sizes of FedAvg and FedProx",
        "seeds": [0, 1, 2],
        "rounds": 8,
        "sweep": {
            "algorithm": [{"kind": "fedavg"}, {"kind": "fedprox", "mu": 0.1}],
            "local.lr": [0.01, 0.03, 0.1, 0.3],
        },
    },
)
HEAT_MAP = """async () => {
    const { src } = document.querySelector("script[src$='settings.js']");
    const { getInstanceByDom } = await import(src.replace("settings", "vendor/echarts/echarts.esm.min"));
    const { xAxis, series } = getInstanceByDom(document.querySelector("[data-chart=heat]")).getOption();
    return { columns: xAxis[0].data, label: series[0].label.formatter({ value: [0, 0, 12.3456] }) };
}"""
AXIS = """async () => {
    const { src } = document.querySelector("script[src$='settings.js']");
    const { getInstanceByDom } = await import(src.replace("settings", "vendor/echarts/echarts.esm.min"));
    const chart = getInstanceByDom(document.querySelector("[data-chart=points]"));
    const { name } = chart.getOption().yAxis[0];
    const texts = chart.getZr().storage.getDisplayList(true).filter(({ type }) => type === "tspan");
    const left = (text) => {
        const box = text.getBoundingRect().clone();
        if (text.transform) box.applyTransform(text.transform);
        return box;
    };
    const named = left(texts.find(({ style }) => style.text === name));
    const labels = texts.map(left).filter(({ x, width }) => x + width < 140 && x > named.x + 1);
    return { name: named.x, labels: Math.min(...labels.map(({ x }) => x)) - named.width };
}"""
RANGES = merged(
    SYNTHETIC,
    {
        "name": "step sizes of a range",
        "seeds": [0],
        "rounds": 1,
        "search": {
            "kind": "study",
            "metric": "train_loss",
            "sampler": "random",
            "trials": 24,
            "space": {
                "local.lr": {"kind": "float", "low": 1e-5, "high": 0.1, "log": True},
                "local.epochs": {"kind": "int", "low": 1, "high": 3},
            },
        },
    },
)
MANY = merged(
    SYNTHETIC,
    {
        "name": "ten thousand arms",
        "seeds": [0],
        "rounds": 1,
        "sweep": {
            "local.lr": [round(0.001 * step, 3) for step in range(1, 101)],
            "local.batch_size": list(range(1, 101)),
        },
        "execution": {"queue": "nobody"},
    },
)


@pytest.fixture(scope="module")
def swept(stack: Stack) -> str:
    """The id of an experiment with eight arms that has succeeded."""
    id = stack.client.submit(SWEPT).id
    stack.client.wait(id)
    return id


def rows(page: Page) -> list[str]:
    """The names of the arms shown, from the top."""
    return page.locator(".tabulator-row .tabulator-cell[tabulator-field=name]").all_inner_texts()


def shown(page: Page, words: str) -> None:
    expect(page.locator("#arms-count")).to_contain_text(words)


def _downloaded(page: Page, path: Path) -> pd.DataFrame:
    """The table as a file, which is kept at `path`."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    download.value.save_as(path)
    return pd.read_csv(path)


def test_the_best_setting_is_found_in_the_table_of_an_experiment(
    opened: Opened, stack: Stack, swept: str, shoot: Shoot, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = opened(f"/experiments/{swept}#arms")
    ready(page)
    shown(page, "8 of 8 arms")
    best = page.get_by_role("columnheader", name="test accuracy (%), best")
    page.get_by_role("button", name="test accuracy (%), best").focus()
    page.keyboard.press("Enter")
    expect(best).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Enter")
    expect(best).to_have_attribute("aria-sort", "descending")
    arms = stack.client.arms(experiments=[swept], sort="-test_accuracy.best").to_pandas()
    assert rows(page)[0] == arms["name"][0]
    shoot(page, "arms")
    hold_accessible(page)
    page.locator("#arms-filter").fill("algorithm.kind = fedprox and local.lr < 0.1")
    shown(page, "2 of 8 arms")
    page.locator("#arms-filter").fill("local.lr <")
    expect(page.locator("#arms-flaw")).to_contain_text("position 11: expected a number")
    page.locator("#arms-filter").fill("")
    shown(page, "8 of 8 arms")
    page.locator("#arms-seeds").select_option("each")
    shown(page, "24 of 24 runs")
    page.locator("#arms-group").select_option("algorithm.kind")
    group = page.locator(".tabulator-group", has_text="algorithm.kind = fedprox (12)")
    runs = stack.client.arms(experiments=[swept], each_seed=True).to_pandas()
    mean = runs[runs["algorithm.kind"] == "fedprox"]["test_accuracy.best"].mean()
    expect(group).to_contain_text(f"best {100 * mean:.2f} ±")
    hold_accessible(page)
    folder = tmp_path_factory.mktemp("arms")
    assert len(_downloaded(page, folder / "grouped.csv")) == 24
    page.locator("#arms-group").select_option("")
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("rounds", exact=True).check()
    page.get_by_label("Pin rounds").check()
    expect(page.locator(".tabulator-col.tabulator-frozen[tabulator-field=rounds]")).to_be_visible()
    hold_accessible(page)
    page.locator("summary", has_text="Columns").click()
    saved = _downloaded(page, folder / "arms.csv")
    page.reload()
    shown(page, "24 of 24 runs")
    expect(best).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".tabulator-col.tabulator-frozen[tabulator-field=rounds]")).to_be_visible()
    assert len(saved) == 24
    assert set(saved["local.lr"]) == {0.01, 0.03, 0.1, 0.3}


def test_arms_and_groups_of_useless_runs_are_marked(opened: Opened, stack: Stack) -> None:
    useless = {"name": "useless", "seeds": [0, 1], "rounds": 8, "sweep": {"local.lr": [0.03, 9e5]}}
    id = stack.client.submit(merged(SYNTHETIC, useless)).id
    stack.client.wait(id)
    good, bad = (arm.warning for arm in stack.client.results(id).arms)
    assert (good, bad is not None) == (None, True)
    for address in (f"/experiments/{id}#arms", "/arms?filter=local.lr = 9e5"):
        page = opened(address)
        ready(page)
        marks = page.locator("#arms-grid").get_by_role("img")
        expect(marks).to_have_count(1)
        expect(marks).to_have_accessible_name(f"Warning: {bad}")
        page.locator("#arms-group").select_option("status")
        expect(marks).to_have_count(1)
        page.locator("#arms-group").select_option("")
        page.locator("#arms-seeds").select_option("each")
        expect(marks).to_have_count(sum(run.warning is not None for run in stack.client.runs(id)))
        hold_accessible(page)
    stack.client.delete(id)


def test_arms_selected_by_their_settings_are_those_of_the_curves(
    opened: Opened, stack: Stack, swept: str, shoot: Shoot
) -> None:
    page = opened(f"/experiments/{swept}#settings")
    ready(page)
    status = page.locator(".settings [role=status]")
    expect(status).to_have_text("8 of 8 arms selected.")
    page.mouse.move(0, 0)
    shoot(page, "settings", whole=True)
    hold_accessible(page)
    page.get_by_role("searchbox", name="Select arms").fill("local.lr >")
    page.keyboard.press("Enter")
    expect(page.locator("#settings-flaw")).to_contain_text("expected a number")
    page.get_by_role("searchbox", name="Select arms").fill("algorithm.kind = fedprox and local.lr < 0.1")
    page.keyboard.press("Enter")
    expect(status).to_have_text("2 of 8 arms selected.")
    page.get_by_label("Horizontal", exact=True).select_option("algorithm.kind")
    page.reload()
    expect(status).to_have_text("2 of 8 arms selected.")
    expect(page.get_by_label("Horizontal", exact=True)).to_have_value("algorithm.kind")
    chart = page.locator("[data-chart=parallel]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    last = box["x"] + box["width"] - 120
    page.mouse.move(last, box["y"] + 42)
    page.mouse.down()
    page.mouse.move(last, box["y"] + box["height"] - 26, steps=4)
    page.mouse.up()
    expect(status).to_have_text("8 of 8 arms selected.")
    heat = page.locator("[data-chart=heat]")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 120, box["y"] + 30)
    expect(status).to_have_text(re.compile("^[12] of 8 arms"))
    page.get_by_role("tab", name="Results").click()
    expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("[12] of 8 arms"))
    page.get_by_role("tab", name="Settings").click()
    page.get_by_role("button", name="Select all").click()
    expect(status).to_have_text("8 of 8 arms selected.")
    narrow = opened(f"/experiments/{swept}#settings", viewport=PHONE, color_scheme="dark")
    ready(narrow)
    expect(narrow.locator(".settings [role=status]")).to_have_text("8 of 8 arms selected.")
    hold_narrow(narrow)
    hold_accessible(narrow)


def test_a_heat_map_of_ranges_has_eight_columns_that_can_be_read(opened: Opened, stack: Stack) -> None:
    id = stack.client.submit(RANGES).id
    stack.client.wait(id)
    for viewport, label in ((None, "12.35"), (PHONE, "")):
        page = opened(
            f"/experiments/{id}?heatx=local.lr#settings", **({"viewport": viewport} if viewport else {})
        )
        ready(page)
        expect(page.locator(".settings [role=status]")).to_have_text("24 of 24 arms selected.")
        expect(page.locator("[data-chart=heat]")).to_have_attribute(
            "aria-label", re.compile(r"at \S+ to \S+ and")
        )
        heat = page.evaluate(HEAT_MAP)
        assert len(heat["columns"]) == 8
        edges = [float(name.removeprefix("≥ ")) for name in heat["columns"]]
        steps = [second / first for first, second in pairwise(edges)]
        assert max(steps) < 1.2 * min(steps), "of equal width on a logarithmic scale"
        # No number stands in a cell that is too narrow for it.
        assert heat["label"] == label
    stack.client.delete(id)


def test_names_of_vertical_axes_stand_beside_wide_labels(opened: Opened, stack: Stack) -> None:
    far = {"name": "far", "seeds": [0], "rounds": 2, "sweep": {"local.lr": [1e4, 1e6]}}
    id = stack.client.submit(merged(SYNTHETIC, far)).id
    stack.client.wait(id)
    page = opened(f"/experiments/{id}#settings")
    page.locator(".settings [name=of]").select_option("train_loss.final")
    expect(page.locator("[data-chart=points] canvas")).to_be_visible()
    ends = page.evaluate(AXIS)
    assert ends["name"] > 0
    assert ends["name"] < ends["labels"]


def test_values_equal_for_all_seeds_have_no_deviation(opened: Opened, swept: str) -> None:
    page = opened(f"/experiments/{swept}#arms")
    ready(page)
    shown(page, "Mean ± sample standard deviation over seeds.")
    sent = page.locator(".tabulator-row .tabulator-cell[tabulator-field=megabytes_sent]")
    assert all(re.fullmatch(r"\d\.\d{4} ± 0\.0000", text) for text in sent.all_inner_texts())


@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}], ids=["laptop", "dark", "phone"]
)
def test_arms_of_all_experiments_are_one_table(opened: Opened, swept: str, options: dict[str, Any]) -> None:
    page = opened("/arms?filter=local.lr+%3E+0.2+and+rounds+%3D+8", **options)
    ready(page)
    shown(page, "2 of 2 arms")
    expect(page.locator("#arms-filter")).to_have_value("local.lr > 0.2 and rounds = 8")
    hold_accessible(page, colours_only="color_scheme" in options)
    hold_narrow(page)
    page.locator(".tabulator-row a", has_text="fedavg").first.click()
    expect(page).to_have_url(re.compile(swept))


@pytest.mark.nightly
def test_ten_thousand_arms_are_sorted_and_filtered(opened: Opened, stack: Stack) -> None:
    id = stack.client.submit(MANY).id
    page = opened("/arms")
    ready(page)
    page.goto(f"/arms?filter=experiment_id+%3D+{id}")
    expect(page.locator(".tabulator-row").first).to_be_visible()
    page.get_by_role("button", name="local.batch_size").click()
    header = page.get_by_role("columnheader", name="local.batch_size")
    expect(header).to_have_attribute("aria-sort", re.compile("ascending|descending"))
    page.goto(f"/experiments/{id}#arms")
    shown(page, "10,000 of 10,000 arms")
    page.locator("#arms-filter").fill("local.lr < 0.010 and local.batch_size > 50")
    page.keyboard.press("Enter")
    shown(page, "450 of 10,000 arms")
    stack.client.delete(id)
