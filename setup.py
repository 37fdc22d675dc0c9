"""Settings that pyproject.toml cannot have: they depend on files of a checkout or of a job."""

import os
import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).parent
# The address of the published repository, which `make release REPOSITORY=…` sets.
REPOSITORY = os.environ.get("REPOSITORY", "").rstrip("/")


def text(name):
    file = HERE / name
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def description():
    """README with absolute links; without a repository to link to, their texts and no pictures."""
    readme = text("README.md")
    if REPOSITORY:
        readme = re.sub(r"(!\[[^]]*\])\((?!\w+:)", rf"\1({REPOSITORY}/raw/main/", readme)
        return re.sub(r"\]\((?!\w+:)", f"]({REPOSITORY}/blob/main/", readme)
    readme = re.sub(r"!\[[^]]*\]\((?!\w+:)[^)]*\)\n*", "", readme)
    return re.sub(r"\[([^]]*)\]\((?!\w+:)[^)]*\)", r"\1", readme)


URLS = {
    "Homepage": REPOSITORY,
    "Documentation": f"{REPOSITORY}/tree/main/docs",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    project_urls=URLS if REPOSITORY else {},
    # Modules of a user that `estimator-det submit` adds to the package of a job.
    py_modules=text("plugins.txt").split(),
)
