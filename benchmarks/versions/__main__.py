"""`python -m benchmarks.versions --python A --python B`: two environments against each other.

Each interpreter trains the same steps from the same seed, resumes from the other's checkpoint,
exports, and runs the other's SavedModel. Prints the largest differences; the exit status is 1 if
one is over its limit. With `--speed` it measures both instead, in turns; other arguments go to
`benchmarks.speed`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from typing import List, Optional, Tuple

from benchmarks.speed import __main__ as speed
from benchmarks.versions import agreement, environment


def _parse(argv: Optional[List[str]]) -> Tuple[argparse.Namespace, List[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument(
        "--python", action="append", required=True, help="an interpreter; give two of them"
    )
    parser.add_argument("--steps", type=int, default=20, help="training steps to compare")
    parser.add_argument("--speed", action="store_true", help="measure instead of comparing")
    parser.add_argument("--repeats", type=int, default=2, help="--speed: turns of each")
    parser.add_argument("--output_dir", type=pathlib.Path, help="keep the files there")
    arguments, others = parser.parse_known_args(argv)
    if len(arguments.python) != 2:
        parser.error("--python: give it twice")
    if others and not arguments.speed:
        parser.error(f"unknown arguments: {' '.join(others)}")
    return arguments, others


def main(argv: Optional[List[str]] = None) -> int:
    """Compares, prints, and returns 1 if the two do not agree."""
    arguments, others = _parse(argv)
    if arguments.speed:
        first, second = environment.find_two(arguments.python)
        print(f"{second.name}, with ratios to {first.name}", flush=True)
        places = [(each.python, speed.ROOT) for each in (second, first)]
        speed.compare(others, places, arguments.repeats)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output_dir or pathlib.Path(scratch)
        lines, agree = agreement.report(folder, arguments.python, arguments.steps)
    print("\n".join(lines))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
