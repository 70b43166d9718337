"""Every file of presets holds together: what can be submitted is valid, and what is claimed is
about arms and panels that there are.
"""

import numpy as np
import pytest

from fedcore import presets
from fedcore.data.exact import ExactProblem
from fedcore.errors import PresetNotFoundError
from fedcore.presets import PresetSpec
from fedcore.presets.sheet import list_variants
from fedcore.solvers.schedules import InverseTimeLr
from fedcore.spec import ExperimentSpec
from fedcore.theory.quadratics import Quadratics
from fedq.results.summaries import metric_names
from tests.theory import fedlin


@pytest.fixture(params=presets.names())
def preset(request: pytest.FixtureRequest) -> PresetSpec:
    return presets.load(request.param)


@pytest.fixture(params=sorted(presets.sheets()))
def sheet_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_preset_is_a_valid_specification_of_its_name(preset: PresetSpec) -> None:
    assert ExperimentSpec.model_validate(preset.spec).name == preset.name


def test_claims_and_numbers_are_about_existing_arms_and_measures_that_are_taken(
    preset: PresetSpec,
) -> None:
    sheet, spec = presets.sheet(preset.sheet), ExperimentSpec.model_validate(preset.spec)
    comparisons = [one for claim in sheet.claims_of(preset.panel) for one in claim.comparisons]
    published = sheet.published_of(preset.panel)
    named = {arm for one in comparisons for arm in one.arms} | {
        arm for table in published for arm in table.numbers
    }
    assert named <= {arm.name for arm in spec.arms()}
    metrics = {one.metric for one in comparisons} | {table.metric for table in published}
    metrics |= set(sheet.figure.metrics) if sheet.figure else set()
    if spec.systems.devices is not None:
        metrics -= {"simulated_seconds"}
    assert metrics <= set(metric_names())
    exact = "quadratic" in str(preset.spec["problem"]) or "least_squares" in str(preset.spec["problem"])
    measured = {*spec.evaluation.measures, *(["epsilon"] if spec.privacy else [])}
    assert exact or metrics <= measured


def test_claims_name_panels_that_there_are(sheet_name: str) -> None:
    sheet = presets.sheet(sheet_name)
    assert {panel for claim in sheet.claims for panel in claim.panels} <= sheet.parts.keys()
    assert {table.panel or "" for table in sheet.published} <= sheet.parts.keys()
    assert {preset for claim in sheet.claims for preset in claim.fails_in} <= {
        sheet_name + variant.suffix for variant in list_variants(sheet)
    }


def test_a_small_form_says_what_it_leaves_out_and_does_less_work(sheet_name: str) -> None:
    full, small = (presets.presets_of(sheet_name, small=small) for small in (False, True))
    for large, little in zip(full, small, strict=True):
        if little.small:
            assert len(little.departures) > len(large.departures)
            assert little.spec != large.spec


def test_departures_are_whole_and_not_what_a_comma_in_yaml_left_of_them(preset: PresetSpec) -> None:
    assert not [said for said in preset.departures if said.startswith(("and ", "each ", "instead "))]


def test_names_lead_to_one_preset_each() -> None:
    made = [
        name + variant.suffix for name, sheet in presets.sheets().items() for variant in list_variants(sheet)
    ]
    assert sorted(made) == presets.names()


@pytest.mark.parametrize(
    ("name", "small", "meant"),
    [
        ("fedlin-figure-1", False, ["fedlin-figure-1-same-steps", "fedlin-figure-1-different-steps"]),
        (
            "fednova-figure-2",
            True,
            ["fednova-figure-2-same-steps-small", "fednova-figure-2-different-steps-small"],
        ),
        ("fedprox-figure-3", True, ["fedprox-figure-11-iid-small", "fedprox-figure-11-non-iid-small"]),
        ("fednova-figure-2-same-steps", False, ["fednova-figure-2-same-steps"]),
        ("fednova-figure-2-same-steps", True, ["fednova-figure-2-same-steps-small"]),
        ("fednova-figure-2-same-steps-small", False, ["fednova-figure-2-same-steps-small"]),
    ],
)
def test_a_name_means_a_sheet_a_figure_that_another_shows_or_a_panel(
    name: str, small: bool, meant: list[str]
) -> None:
    assert [preset.name for preset in presets.meant_by(name, small=small)] == meant


def test_every_figure_and_table_of_the_papers_has_a_sheet() -> None:
    wanted = {f"fedprox-figure-{number}" for number in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12)} | {
        "fednova-table-1",
        "fedaware-table-1",
    }
    wanted |= {f"fedaware-figure-{number}" for number in range(2, 10)} | {
        f"fednova-figure-{number}" for number in (2, 4, 5)
    }
    assert all(presets.meant_by(name, small=False) for name in wanted)


def test_a_name_that_means_nothing_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        PresetNotFoundError,
        match=r"no figure or table 'fedprox-figure-13'; the nearest are fedprox-figure-3, ",
    ):
        presets.meant_by("fedprox-figure-13", small=True)


def test_a_sheet_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        PresetNotFoundError, match=r"no figure or table 'fedlin-figure-9'; the nearest are fedlin-figure-1, "
    ):
        presets.sheet("fedlin-figure-9")


def test_where_fedprox_and_fednova_rest_in_fedlins_figure_is_what_theory_says() -> None:
    problem = Quadratics(np.array([[[1.0]], [[2.0]]]), np.array([[3.0], [100.0]]), np.array([0.5, 0.5]))
    (optimum,) = problem.optimum()
    same, different = (
        presets.sheet("fedlin-figure-1").claims_of(panel)[0] for panel in ("same-steps", "different-steps")
    )
    expected = {one.arm: one.than for one in same.comparisons}
    assert expected["FedProx"] == pytest.approx(
        abs(fedlin.proposition_1(problem, 0.01, 50, 5.0)[0] - optimum), rel=1e-12
    )
    assert expected["FedNova"] == pytest.approx(
        abs(fedlin.proposition_2(problem, 0.01, 50)[0] - optimum), rel=1e-12
    )
    assert different.comparisons[0].than == pytest.approx(
        abs(fedlin.proposition_2(problem, 0.01, [50, 30])[0] - optimum), rel=1e-12
    )


def test_where_two_clients_lead_in_fedawares_figure_is_what_the_closed_form_says() -> None:
    """lambda_1 = (v_2 - v_1)' v_2 / |v_1 - v_2|^2, held between 0 and 1."""
    sheet = presets.sheet("fedaware-figure-3")
    arms = {
        arm["name"]: np.array([client["e"] for client in arm["problem.dataset.clients"]])
        for arm in sheet.spec["sweep"]["arms"]
    }
    for one in (one for claim in sheet.claims for one in claim.comparisons if one.relation == "near"):
        first, second = arms[one.arm]
        weight = np.clip((second - first) @ second / ((first - second) @ (first - second)), 0, 1)
        values = {
            "distance": abs(weight - 0.5) * np.linalg.norm(first - second),
            "fedaware_chi_square": 4 * (weight**2 + (1 - weight) ** 2),
        }
        assert one.than == pytest.approx(values[one.metric], rel=1e-12), one.arm


@pytest.mark.parametrize("name", ["fedavg-noniid-theorem", "fedavg-noniid-theorem-small"])
def test_the_step_size_of_li_et_al_is_that_of_the_theorem(name: str) -> None:
    """eta_t = 2 / (mu (gamma + t)) with gamma = max(9 kappa, E) for clients of curvatures from mu
    to L = kappa mu.
    """
    for arm in ExperimentSpec.model_validate(presets.load(name).spec).arms():
        dataset, local = arm.spec.problem.dataset, arm.spec.local
        assert isinstance(dataset, ExactProblem)
        assert isinstance(local.lr_schedule, InverseTimeLr)
        assert local.steps is not None
        curvatures = np.linalg.eigvalsh(dataset.quadratics().hessians)
        mu, kappa = curvatures.min(), curvatures.max() / curvatures.min()
        assert local.lr_schedule.counts == "steps"
        assert (local.lr_schedule.mu, local.lr_schedule.gamma) == pytest.approx(
            (mu, max(9 * kappa, local.steps))
        )


def test_the_curvatures_of_fedlins_regression_are_those_of_its_clients() -> None:
    spec = ExperimentSpec.model_validate(presets.load("fedlin-regression").spec)
    assert isinstance(spec.problem.dataset, ExactProblem)
    curvatures = np.linalg.eigvalsh(spec.problem.dataset.quadratics().hessians)
    told = f"the curvatures of the clients lie between {curvatures.min():.2f} and {curvatures.max():.2f}"
    assert any(told in departure for departure in presets.sheet("fedlin-regression").departures)
