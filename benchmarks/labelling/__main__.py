"""`python -m benchmarks.labelling PROGRAM`: tools for labels, on shapes that are drawn.

`faults` plants faults in labels and looks for them; `suggestions` labels suggested pictures and
random ones, and compares the detectors.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile

from benchmarks.labelling import faults, suggestions

PROGRAMS = {"faults": faults.main, "suggestions": suggestions.main}


def main() -> None:
    """Runs a program in a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.labelling", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (%(default)s)")
    parser.add_argument("--output_dir", help="keep the files there")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.output_dir or stack.enter_context(tempfile.TemporaryDirectory())
        PROGRAMS[arguments.program](folder, arguments.seeds)


if __name__ == "__main__":
    main()
