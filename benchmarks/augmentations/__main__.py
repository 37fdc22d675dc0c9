"""`python -m benchmarks.augmentations`: µs of processor time for each registered step."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LIMIT = 1.5  # times the processor time of a step's kernels


def main(argv: Optional[List[str]] = None) -> int:
    """Prints a table, with a mark at each step above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.augmentations", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="measure just these steps")
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--boxes", type=int, default=8)
    parser.add_argument("--masks", action="store_true", help="with a mask for each box")
    parser.add_argument("--images", type=int, default=16, help="that each step is applied to")
    parser.add_argument("--repeats", type=int, default=10, help="of which the fastest counts")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="ratio to mark (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if hasattr(os, "sched_setaffinity"):  # Before TensorFlow starts its threads.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from benchmarks.augmentations import measure

    known = measure.names()
    unknown = set(options.only or []) - set(known)
    if unknown:
        parser.error(f"{sorted(unknown)} are not registered; known: {known}")
    print(f"{options.width} x {options.height} pixels, {options.boxes} boxes, one processor")
    print(f"{'step':<42} {'µs an image':>11} {'in kernels':>10} {'ratio':>6} {'kernels':>8}")
    above = []
    for name in options.only or known:
        found = measure.measure(
            name,
            (options.height, options.width),
            options.boxes,
            options.masks,
            options.images,
            options.repeats,
        )
        mark = " *" if found.ratio > options.limit else ""
        above += [found] if mark else []
        print(
            f"{name:<42} {found.step_us:>11.0f} {found.kernels_us:>10.0f} {found.ratio:>6.2f} "
            f"{found.num_kernels:>8.0f}{mark}",
            flush=True,
        )
    print(f"above {options.limit:g} times: {', '.join(one.name for one in above) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
