"""Numbers that rounding decides, compared with runs of weights moved by one unit in the last place.

Batch norm over two images divides by very small numbers where a map has one or four cells, and
simulated quantization moves values to another level: both multiply rounding a thousandfold, so
that another processor or another TensorFlow computes other gradients from the same weights.

If a run of the exact weights is within all tolerances, it holds. Otherwise more runs start from
moved weights. If the runs agree on a number, it must be within its tolerance. Two more rules hold
for the numbers of a kind:

1. Of the numbers that the runs do not agree on, at most the share `FEW` is outside the range of the
   runs by more than `OUTSIDE` times its width.
2. The median distance of recorded numbers to the mean of the runs is at most the tolerance, or
   `NEAR` times the median distance of the farthest run to the mean of the other runs.

The farthest run counts, not the average run, because numbers of one run are not independent. Batch
norm of a 1x1 map normalizes two values of a channel: where rounding leaves them nearly equal, it
multiplies gradients by up to 30, and the gradients of all layers below share the error.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import SeededValue, moved

REPEATS = 7
OUTSIDE, FEW, NEAR = 3, 0.05, 2.0
MANY = 8  # runs that do not agree by chance
MANY_NUMBERS = 20  # fewer are no kind of their own, as the losses of one run

Values = Dict[str, Any]  # numbers or arrays by name


def moved_values(value: SeededValue, repeats: int) -> List[SeededValue]:
    """The exact weights, then moved ones."""
    return [value, *(moved(value, repeat) for repeat in range(1, 1 + repeats))]


def compare_repeated(
    columns: Sequence[str],
    run: Callable[[SeededValue], Any],
    value: SeededValue,
    compare: Callable[[Dict[str, Check], Sequence[Any]], None],
) -> Dict[str, Check]:
    """Checks of a run of the exact weights; with repeats, where that run does not hold.

    `compare` fills the checks from one or more runs; the first has the exact weights.
    """
    exact, *others = moved_values(value, REPEATS)
    runs = [run(exact)]
    checks = {column: Check() for column in columns}
    compare(checks, runs)
    if all(check.ok for check in checks.values()):
        return checks
    repeated = {column: Check() for column in columns}
    compare(repeated, [*runs, *map(run, others)])
    return {column: check if check.ok else repeated[column] for column, check in checks.items()}


def compare_runs(
    check: Check,
    runs: Sequence[Values],
    expected: Values,
    tolerance: float,
    kind: str,
    least_scale: float = 0.0,
) -> None:
    """Compares recorded numbers of one kind with our runs; see the top of this file.

    The first run has the exact weights. The tolerance is relative to the largest value of an
    array, or to `least_scale` if that is larger; recorded zeros are left out.
    """
    names, ours, recorded = [], {}, {}
    for name, value in expected.items():
        scale = max(float(np.max(np.abs(value), initial=0.0)), least_scale)
        if name not in runs[0]:
            check.fail(f"{kind} of {name}: missing")
        elif not all(np.all(np.isfinite(run[name])) for run in runs):
            check.fail(f"{kind} of {name}: not finite")
        elif scale > 0:
            names.append(name)
            ours[name] = np.stack([np.asarray(run[name], np.float64) / scale for run in runs])
            recorded[name] = np.asarray(value, np.float64) / scale
    if not names:
        return
    spread = {name: float(np.max(np.ptp(ours[name], axis=0))) for name in names}
    usual = float(np.median(list(spread.values())))
    outside, worst, such_as = [], 0.0, ""
    for name in names:
        noise = spread[name] if len(runs) >= MANY else max(spread[name], usual)
        if OUTSIDE * noise <= tolerance:
            difference = float(np.max(np.abs(recorded[name] - ours[name][0])))
            check.error(difference, tolerance, f"{kind} of {name}")
            continue
        least, most = ours[name].min(axis=0), ours[name].max(axis=0)
        beyond = float(np.max(np.maximum(least - recorded[name], recorded[name] - most)))
        outside.append(beyond > OUTSIDE * noise)
        if beyond > worst:
            worst, such_as = beyond, name
    if outside:
        share = float(np.mean(outside))
        check.error(share, FEW, f"{kind}, the share that is far from the repeats, as {such_as}")
    if len(runs) == 1 or len(names) < MANY_NUMBERS:
        return
    theirs = np.median([np.mean(np.abs(recorded[n] - ours[n].mean(axis=0))) for n in names])
    farthest = np.max(np.median([_from_the_others(ours[n]) for n in names], axis=0))
    check.error(float(theirs), max(tolerance, NEAR * float(farthest)), f"median {kind}")


def _from_the_others(runs: np.ndarray) -> np.ndarray:
    """Mean distance of each run to the mean of all others, [number of runs]."""
    rest = (runs.sum(axis=0) - runs) / (len(runs) - 1)
    return np.mean(np.abs(runs - rest).reshape(len(runs), -1), axis=1)
