"""Runs targets on damaged inputs in forked children, and reports what went wrong.

`python -m tests.fuzz.runner FOLDER records:300 images:100 …` prints a JSON line for each
problem, and one with the number of inputs. `--seed N` starts at another seed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import signal
import sys
import traceback
from typing import Any, Dict, List, Optional

from estimator_det.programs import console

LIMIT = 2.0  # GB of resident memory
BATCH = 200  # inputs of one child
SECONDS_EACH = 30  # of processor time; more means that an input never ends


def run_child(target: Any, seeds: range, folder: pathlib.Path) -> None:
    """Writes the seed that is being used, so that a child killed by a signal has named it."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        _, highest = resource.getrlimit(resource.RLIMIT_CPU)
        for seed in seeds:
            (folder / "seed").write_text(str(seed))
            used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS_EACH, highest))
            console.run(lambda seed=seed: target(seed, folder) or 0)
        code = 0
    except BaseException:
        (folder / "error").write_text(traceback.format_exc(), errors="backslashreplace")
    finally:
        os._exit(code)


def run_target(name: str, target: Any, seeds: range, folder: pathlib.Path) -> List[Dict[str, Any]]:
    """Problems by seed; the inputs after one that stops a child go to the next child."""
    problems = []
    while len(seeds):
        batch, error = seeds[:BATCH], folder / "error"
        error.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            run_child(target, batch, folder)
        _, status, usage = os.wait4(child, 0)
        seed = int((folder / "seed").read_text())
        if os.WIFSIGNALED(status):
            what = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            problems.append({"target": name, "seed": seed, "what": what})
        elif os.WEXITSTATUS(status):
            problems.append({"target": name, "seed": seed, "what": error.read_text()})
        elif usage.ru_maxrss > LIMIT * 1e6:  # kB
            what = f"{usage.ru_maxrss / 1e6:.2f} GB of memory for seeds {batch}"
            problems.append({"target": name, "seed": seed, "what": what})
        seeds = range(seed + 1, seeds.stop)
    return problems


def main(argv: Optional[List[str]] = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("counts", nargs="+", metavar="TARGET:INPUTS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    console.quiet_logging()
    from tests.fuzz import targets

    prefix = options.folder / "whole" / "model.ckpt"
    prefix.parent.mkdir(parents=True)
    saver = os.fork()
    if saver == 0:  # This process must not run a session, or its children might hang.
        targets.save_checkpoint(str(prefix))
        os._exit(0)
    os.waitpid(saver, 0)
    by_name = targets.make_targets(targets.make_inputs(str(prefix)))
    total = 0
    for one in options.counts:
        name, _, count = one.partition(":")
        folder = options.folder / name
        folder.mkdir()
        seeds = range(options.seed, options.seed + int(count))
        for problem in run_target(name, by_name[name], seeds, folder):
            print(json.dumps(problem), flush=True)
        total += len(seeds)
    print(json.dumps({"inputs": total}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
