"""`fedq audit-privacy`: test the differential privacy of a specification, without a service."""

from __future__ import annotations

from collections.abc import Iterable

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fedcore.errors import FedcoreError
from fedq.cli.experiments import Assignments, Code, PresetName, SpecificationFile, overrides
from fedq.cli.lazy import configuration, presentation, testing
from fedq.cli.planning import checked_specification
from fedq.cli.terminal import AsJson, ExitCode, checking, show


def audit_privacy(
    spec: SpecificationFile = None,
    preset: PresetName = None,
    assignments: Assignments = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Look for evidence against the epsilon that a specification reports, with its own data and model.

    Pairs of runs on data that differ in one client or sample show whether more leaves them than is
    accounted for; guesses about canaries in one run give a lower bound of epsilon. Exit code 1 if
    the reported epsilon is refuted. That nothing is found proves nothing.
    """
    found = checked_specification(spec, preset, overrides(assignments or []), code)
    with checking("SPEC", FedcoreError):
        report = testing.audit_privacy(
            found,
            data_dir=configuration.settings().datasets,
            models_allowed=configuration.settings().models_allowed,
        )
    show(report, _view, as_json=as_json)
    if report.refuted:
        raise typer.Exit(ExitCode.UNSUCCESSFUL)


def _view(report: testing.PrivacyReport) -> RenderableType:
    return Group(*(line for arm in report.arms for line in _lines(arm)))


def _lines(arm: testing.ArmAudit) -> Iterable[Text]:
    yield Text.assemble((arm.arm, "bold"), f": {arm.mechanism}, delta {arm.delta:g}")
    for violation in arm.violations:
        yield Text.assemble("  ", ("not accounted for", "red"), f": {violation}")
    if not arm.violations:
        pairs, rounds = presentation.counted(arm.pairs, "pair"), presentation.counted(arm.rounds, "round")
        yield Text(
            f"  {pairs} of runs of {rounds}: no value moved beyond its sensitivity, and nothing else differed"
        )
    if arm.guessed is None:
        yield Text(f"  epsilon: reported {arm.epsilon:.4g}; no lower bound: {arm.note}")
        return
    guessed = arm.guessed
    yield Text(
        f"  epsilon: at least {guessed.epsilon_at_least:.3g} (99.9 %), reported {arm.epsilon:.4g}, this test"
        f" cannot show more than {guessed.epsilon_shown_at_most:.3g}"
    )
    yield Text(f"  {guessed.right} of {guessed.guesses} guesses about {guessed.canaries} canaries were right")
