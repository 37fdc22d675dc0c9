"""`make release` begins and ends with it: what keeps this version from a release, and what is left
to do by hand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import estimator_det
from tests.conftest import ROOT

STEPS = """\
estimator-det {version} is in dist/, and passed its tests. Left to do:
  make test-all && make test-matrix
  git tag --sign v{version} --message "estimator-det {version}" && git push origin v{version}
  pip install twine && twine upload dist/*
Then set the next version in estimator_det/__init__.py.
"""


def faults(
    changelog: str, installation: str, status: str, version: str, repository: str
) -> list[str]:
    """What keeps a version from being released."""
    reasons = []
    if not repository:
        reasons.append(
            "the address of the repository is missing; without it the package's page has no links "
            "and no pictures: make release REPOSITORY=https://…"
        )
    if status:
        reasons.append("there are changes that are not committed: git status lists them")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        reasons.append(
            f"CHANGELOG.md has no heading '## {version} - DATE': rename '## Unreleased', and put "
            "an empty '## Unreleased' above it"
        )
    if "in no index yet" in installation:
        reasons.append(
            "docs/installation.md says that the package is in no index yet: name pip install "
            "estimator-det there, and in README.md"
        )
    return reasons


def main() -> int:
    version = estimator_det.__version__
    command = ["git", "status", "--porcelain"]
    status = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    installation = (ROOT / "docs/installation.md").read_text(encoding="utf-8")
    repository = os.environ.get("REPOSITORY", "")
    reasons = faults(changelog, installation, status, version, repository)
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    if not reasons and "--check" not in sys.argv:
        print(STEPS.format(version=version))
    return bool(reasons)


if __name__ == "__main__":
    sys.exit(main())
