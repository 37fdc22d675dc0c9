"""`make audit`: known vulnerabilities of the packages that are installed, as pip-audit finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import List, Optional

from tests.conftest import ROOT

COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements_lock.txt")),
    *("--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off"),
]


def vulnerabilities(output: str) -> Optional[List[str]]:
    """A line for each one in what pip-audit prints; None if its database answered for no package."""
    try:
        packages = json.loads(output)["dependencies"]
    except ValueError:
        return None
    checked = [package for package in packages if "vulns" in package]
    if not checked:
        return None
    return [
        f"{package['name']} {package['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no release'}"
        for package in checked
        for found in package["vulns"]
    ]


def main() -> int:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    lines = vulnerabilities(done.stdout)
    if lines is None:
        reason = (done.stderr.strip().splitlines() or ["it knows none of the packages"])[-1]
        print(
            f"== the database of pip-audit cannot be reached: vulnerabilities are NOT checked: {reason}"
        )
        return 0
    print(
        "\n".join(
            [*lines, f"{len(lines)} known vulnerabilities of packages in requirements_lock.txt"]
        )
    )
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
