"""`python -m benchmarks.labelling PROGRAM`: tools for labels, on drawn shapes and on photographs.

`faults` plants faults in labels of drawn shapes and looks for them; `suggestions` labels suggested
pictures and random ones, and compares the detectors; `photographs` does this on your photographs.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile

from benchmarks.labelling import faults, photographs, suggestions

PROGRAMS = {"faults": faults.main, "suggestions": suggestions.main}


def main() -> None:
    """Runs a program in a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.labelling", description=__doc__)
    parser.add_argument("program", choices=[*PROGRAMS, "photographs"])
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (%(default)s)")
    parser.add_argument("--output_dir", help="keep the files there")
    group = parser.add_argument_group("photographs")
    group.add_argument("--images", metavar="DIR")
    group.add_argument("--annotations", metavar="DIR", help="in the format of PASCAL VOC")
    group.add_argument("--pretrained", metavar="NAME|PATH", help="as in `estimator-det init`")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.output_dir or stack.enter_context(tempfile.TemporaryDirectory())
        if arguments.program == "photographs":
            source = (arguments.images, arguments.annotations, arguments.pretrained)
            if None in source:
                parser.error("photographs needs --images, --annotations and --pretrained")
            photographs.main(folder, arguments.seeds, photographs.Data(*source))
        else:
            PROGRAMS[arguments.program](folder, arguments.seeds)


if __name__ == "__main__":
    main()
