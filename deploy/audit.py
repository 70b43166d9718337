"""Look up what is known of the pinned dependencies' vulnerabilities: `make audit`.

pip-audit asks the Python Package Index, release by release, and passes over in silence what it
cannot find there: without a network, or with a mirror that knows no vulnerabilities, it would
report that there are none. So one release is asked for first, and where that is unknown this says
that nothing was audited. What is found makes it fail; that nothing could be looked up does not.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PINNED = Path("constraints.txt")
PATIENCE_S = 180.0
ABSENT = (
    "The vulnerability database cannot be reached from here: no dependency was audited. Run `make audit`"
    " where there is a network."
)
_OPTIONS = ("--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off", "--timeout=10")


def main() -> None:
    """Audit the pinned releases and say what came of it.

    Exits with 1 where some have known vulnerabilities.
    """
    pinned = [line for line in PINNED.read_text(encoding="utf-8").splitlines() if "==" in line]
    text, status = judge(ask(pinned)) if known(ask(pinned[:1])) else (ABSENT, 0)
    sys.stdout.write(text + "\n")
    sys.exit(status)


def ask(releases: Sequence[str]) -> list[Any]:
    """Return pip-audit's report on these releases; nothing if it has none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(releases) + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", file.name, *_OPTIONS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603 - our own
            found: list[Any] = json.loads(done.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            return []
    return found


def known(found: Sequence[Any]) -> bool:
    """True if at least one release has a known vulnerability."""
    return any("vulns" in release for release in found)


def judge(found: Sequence[Any]) -> tuple[str, int]:
    """Return the summary of these releases and the exit status."""
    if not known(found):
        return ABSENT, 0
    flaws = [
        f"{release['name']} {release['version']}: {flaw['id']}, mended in"
        f" {', '.join(flaw['fix_versions']) or 'no release yet'}"
        for release in found
        for flaw in release.get("vulns", ())
    ]
    unknown = [
        f"{release['name']}: not audited, {release['skip_reason']}"
        for release in found
        if "skip_reason" in release
    ]
    audited = len(found) - len(unknown)
    return "\n".join(
        [*flaws, *unknown, f"{audited} releases audited, {len(flaws)} vulnerabilities known"]
    ), 1 if flaws else 0


if __name__ == "__main__":
    main()
