"""All tests on every TensorFlow and Python that belong together: `make test-matrix`, or `nox`.

One pair alone: `nox -s "tests(python='3.12', tensorflow='2.16.2')"`.
"""

import os

import nox

# The Pythons that each TensorFlow has packages for, of those that estimator-det supports.
PYTHONS = {
    "2.15.1": ("3.9", "3.10", "3.11"),
    "2.16.2": ("3.9", "3.10", "3.11", "3.12"),
    "2.19.1": ("3.9", "3.10", "3.11", "3.12"),
    "2.21.0": ("3.10", "3.11", "3.12", "3.13"),
}
PAIRS = [(python, tensorflow) for tensorflow, pythons in PYTHONS.items() for python in pythons]

nox.options.error_on_missing_interpreters = True


@nox.session
@nox.parametrize("python,tensorflow", PAIRS)
def tests(session: nox.Session, tensorflow: str) -> None:
    """The whole suite; arguments after `--` go to pytest."""
    extras = "test,protos" if tensorflow.startswith("2.15.") else "test"
    session.install("--editable", f".[{extras}]", f"tensorflow=={tensorflow}")
    session.run(
        *("python", "-m", "pytest", "-n", os.environ.get("JOBS", "2"), "--dist", "loadfile"),
        *session.posargs,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
