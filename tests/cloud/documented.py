"""Names of the services: variables in docs/cloud.md, fields of jobs in Google's reference."""

from __future__ import annotations

import re
from typing import Any, Iterator, Set

from tests.conftest import TESTS

PAGE = TESTS.parent / "docs" / "cloud.md"

# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec, on 2026-11-22.
_POOL = {
    "": ("machineSpec", "replicaCount", "pythonPackageSpec", "containerSpec"),
    "machineSpec.": ("machineType", "acceleratorType", "acceleratorCount", "tpuTopology"),
    "pythonPackageSpec.": ("executorImageUri", "packageUris", "pythonModule", "args"),
    "containerSpec.": ("imageUri", "command", "args"),
}
CUSTOM_JOB_FIELDS = {
    *("workerPoolSpecs", "baseOutputDirectory", "baseOutputDirectory.outputUriPrefix"),
    *("scheduling", "scheduling.strategy", "scheduling.restartJobOnWorkerRestart"),
    "serviceAccount",
    *(f"workerPoolSpecs.{spec}{name}" for spec, names in _POOL.items() for name in names),
}


def variables() -> Set[str]:
    """Names in the first column of the page's table of variables."""
    table = PAGE.read_text().partition("| Variable |")[2].split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(.*?)`", row)}


def fields(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of a description, without the numbers of lists."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield f"{prefix}{key}"
            yield from fields(entry, f"{prefix}{key}.")
    elif isinstance(value, list):
        for entry in value:
            yield from fields(entry, prefix)
