"""`python -m benchmarks.conformance`: one row per configuration; exit 1 if any falls short."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from typing import Dict, List, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# One thread per op, as goldens were measured: batch norm of two images amplifies rounding, so that
# with two threads gradient norms differ by up to 98 %. Read once, when TensorFlow starts.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.case import Case
from benchmarks.conformance.compare import Check
from benchmarks.conformance.trace import check_trace
from estimator_det.config import pipeline


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "--configs", type=pathlib.Path, required=True, help="folder of .config files"
    )
    parser.add_argument(
        "--golden", type=pathlib.Path, required=True, help="folder of golden numbers"
    )
    parser.add_argument("--data", type=pathlib.Path, help="folder of images; unused by SSD records")
    parser.add_argument("--only", default="*", help="glob over the names, e.g. 'ssd_mobilenet_v1*'")
    arguments = parser.parse_args(argv)
    for folder in (arguments.configs, arguments.golden):
        if not folder.is_dir():
            parser.error(f"{folder}: not a folder")
    return arguments


def run_case(golden_dir: pathlib.Path, configs_dir: pathlib.Path, name: str) -> Dict[str, Check]:
    """All checks of one name; a check that cannot run fails with the reason."""
    cells = {column: Check() for column in checks.COLUMNS}
    golden = goldens.read(golden_dir, name)
    try:
        config = pipeline.read_pipeline(configs_dir / f"{golden.config_name}.config")
    except (OSError, pipeline.ConfigError) as error:
        cells["variables"].fail(str(error))
        return cells
    case = Case(golden, config, golden_dir)
    for check in (*checks.CHECKS, check_trace):
        try:
            check(case, cells)
        except Exception as error:
            # Whatever keeps a configuration from being built or run is told in its row, which
            # falls short; the table goes on.
            cells["variables"].fail(f"{check.__name__}: {type(error).__name__}: {error}"[:300])
    return cells


def main(argv: Optional[List[str]] = None) -> int:
    """Prints the table; 0 if every row holds, 1 if any falls short or there is none."""
    arguments = _parse(argv)
    names = goldens.names(arguments.golden, arguments.only)
    if not names:
        print(f"no golden numbers match {arguments.only!r} in {arguments.golden}", file=sys.stderr)
        return 1
    print("configuration | " + " | ".join(checks.COLUMNS) + " | seconds")
    fallen = []
    for name in names:
        start = time.monotonic()
        cells = run_case(arguments.golden, arguments.configs, name)
        shown = ["-" if not c.compared and c.failure is None else str(c) for c in cells.values()]
        print(" | ".join([name, *shown, f"{time.monotonic() - start:.0f}"]), flush=True)
        if any(cell.failure for cell in cells.values()) or not any(c.ok for c in cells.values()):
            fallen.append(name)
    print(f"{len(names) - len(fallen)} of {len(names)} configurations hold")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
