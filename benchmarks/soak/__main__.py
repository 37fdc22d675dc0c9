"""Serves a SavedModel for many requests of mixed sizes and checks that memory stays flat.

`python -m benchmarks.soak exported/saved_model --requests 20000`

The requests run in a process that imports TensorFlow only. The exit status is 1 if its memory
grows by more than `--allowed_percent` from the first third of the requests to the last.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional

CLIENT = pathlib.Path(__file__).parent / "client.py"


def serve(saved_model: str, requests: int, largest: int) -> Iterator[Dict[str, Any]]:
    """The lines that the process prints, as they come.

    Raises:
        RuntimeError: if it fails, or imports modules of this package.
    """
    command = [sys.executable, "-I", str(CLIENT), saved_model]
    command += ["--requests", str(requests), "--largest", str(largest)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            if found.get("foreign_modules"):
                raise RuntimeError(f"the process imports {found['foreign_modules']}")
            if "requests" in found:
                yield found
    if process.returncode:
        raise RuntimeError(f"the process fails with exit status {process.returncode}")


def growth(reports: List[Dict[str, Any]]) -> float:
    """How much larger memory is at the end than after a third of the requests, as a share.

    The first third does not count, because TensorFlow fills its caches in it.
    """
    third = max(len(reports) // 3, 1)
    first, last = reports[third - 1], reports[-1]
    return float(last["resident_bytes"] / first["resident_bytes"] - 1)


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("saved_model")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--largest", type=int, default=640, help="pixels of the longer side")
    parser.add_argument("--allowed_percent", type=float, default=3.0)
    options = parser.parse_args(argv)
    print(f"{'requests':>9} {'seconds':>8} {'memory MB':>10} {'detections':>11}")
    reports = []
    for found in serve(options.saved_model, options.requests, options.largest):
        reports.append(found)
        print(
            f"{found['requests']:>9,} {found['seconds']:>8.0f} "
            f"{found['resident_bytes'] / 1e6:>10.1f} {found['detections']:>11,.0f}",
            flush=True,
        )
    percent = 100 * growth(reports)
    print(f"growth after the first third: {percent:.2f} %")
    return int(percent > options.allowed_percent)


if __name__ == "__main__":
    sys.exit(main())
