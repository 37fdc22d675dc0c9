"""Prints requirements_lock.txt from a report of pip: `make lock` runs this file alone."""

import importlib.metadata
import json
import sys

HEADER = """\
# Exact versions for Python 3.11 on Linux: `make venv`, Dockerfile and Bazel install these.
# `make lock` writes this file.
"""


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        packages = [entry["metadata"] for entry in json.load(file)["install"]]
    versions = {each["name"].lower().replace("_", "-"): each["version"] for each in packages}
    del versions["estimator-det"]
    # A new environment has it, so pip does not resolve it.
    versions.setdefault("setuptools", importlib.metadata.version("setuptools"))
    print(HEADER + "\n".join(f"{name}=={versions[name]}" for name in sorted(versions)))


if __name__ == "__main__":
    main()
