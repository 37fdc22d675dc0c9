"""Compares two replicas with one: `python -m benchmarks.scaling`.

One replica runs on one core with one thread, two replicas on two cores with one thread each; each
replica has the same number of images. The efficiency is the speed of two over twice the speed of
one. Two programs of one replica each show the most that the cores allow: they wait for nothing, and
share nothing but the memory and, on some machines, parts of one core.

The kinds take steps in turn. Rounds of turns count in which other programs used the cores least.
Ready threads run, or wait for a core alone. With less than one for each replica, replicas wait for
each other; other programs hardly change that number.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import List

from benchmarks.scaling import turns


def main(arguments: List[str]) -> int:
    """Runs the comparison; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each kind (%(default)s)")
    parser.add_argument("--calmest", type=int, default=5, help="rounds that count (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="images of a replica (%(default)s)")
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("this needs two cores", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        one, other, two = (
            stack.enter_context(turns.Program(own, options.batch))
            for own in (cores[:1], cores[1:], cores)
        )
        for program in (one, other, two):
            program.wait()
        kinds = {turns.ONE: [one], turns.TWO: [two], turns.APART: [one, other]}
        rounds = [
            {name: turns.take(running, cores, options.steps) for name, running in kinds.items()}
            for _ in range(options.rounds)
        ]
    for line in turns.report(turns.calmest(rounds, options.calmest)):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
