"""Reports on dependencies: known vulnerabilities, none, and a database that does not answer."""

from deploy.audit import ABSENT, judge

SOUND = {"name": "idna", "version": "3.20", "vulns": []}
FLAWED = {
    "name": "jinja",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
UNKNOWN = {
    "name": "torch",
    "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.15.0)",
}


def test_without_a_database_nothing_is_found_to_be_sound() -> None:
    assert judge([]) == (ABSENT, 0)
    assert judge([UNKNOWN, UNKNOWN]) == (ABSENT, 0)


def test_vulnerable_packages_fail_with_the_release_that_mends_them() -> None:
    text, status = judge([SOUND, FLAWED])
    assert status == 1
    assert "jinja 2.0: PYSEC-1, mended in 2.1, 3.0" in text
    assert "jinja 2.0: PYSEC-2, mended in no release yet" in text


def test_packages_that_could_not_be_audited_are_named() -> None:
    text, status = judge([SOUND, UNKNOWN])
    assert status == 0
    assert "torch: not audited" in text
    assert text.endswith("1 releases audited, 0 vulnerabilities known")
