"""`make audit`: known vulnerabilities of the locked packages, by pip-audit."""

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
    """A line for each vulnerability in pip-audit's output; None if it could check no package."""
    try:
        packages = json.loads(output)["dependencies"]
    except ValueError:
        return None
    checked = [package for package in packages if "vulns" in package]
    if not checked:
        return None
    return [
        f"{package['name']} {package['version']}: {each['id']}, fixed in "
        f"{', '.join(each['fix_versions']) or 'no release'}"
        for package in checked
        for each in package["vulns"]
    ]


def main() -> int:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    lines = vulnerabilities(done.stdout)
    if lines is None:
        print(done.stderr.strip()[-500:])
        print("== the database of pip-audit cannot be reached: vulnerabilities are NOT checked")
        return 0
    print(*lines, f"known vulnerabilities of locked packages: {len(lines)}", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
