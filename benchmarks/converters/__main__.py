"""Prints processor time against bare loops, memory, and whether a killed conversion resumes.

`python -m benchmarks.converters --images 500 --records 10000 50000 100000`
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, Optional

from benchmarks.converters import data
from benchmarks.converters.data import DataSet
from estimator_det.compat import quick_callable, tf, tf1
from estimator_det.config.printing import report
from inputs.conversion import engine
from inputs.conversion.images import DECODE, HEADER, ImageOptions
from inputs.datasets.source import SourceOptions
from inputs.machine import available_cpus

SMALL_SIDE = 32  # pixels of the images for memory
POLL_SECONDS = 0.2


def make_loop(given: DataSet, folder: str, *, decode: bool) -> Callable[[], object]:
    """The least that has to be done: reads each file, decodes it or not, and writes its bytes."""
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.string, [])
        size = tf.size(tf.io.decode_jpeg(placeholder, channels=3))
        run = quick_callable(tf1.Session(graph=graph), size, placeholder)

    def copy() -> None:
        with tf.io.TFRecordWriter(os.path.join(folder, "copy.record")) as writer:
            for name in given.names:
                with open(os.path.join(given.images, name), "rb") as file:
                    encoded = file.read()
                if decode:
                    run(encoded)
                writer.write(encoded)

    return copy


def make_conversion(given: DataSet, folder: str, verify: str) -> Callable[[], object]:
    """The whole work of `estimator-det convert` without the start of the program."""
    options = engine.ConvertOptions(
        "coco", SourceOptions(given.images, given.annotations), os.path.join(folder, "out"),
        image=ImageOptions(verify=verify), overwrite=True,
    )  # fmt: skip
    return lambda: engine.convert(options, jobs=1)


def milliseconds(
    runs: Dict[str, Callable[[], object]], count: int, repeats: int
) -> Dict[str, float]:
    """Processor time of this process for an image; of runs in turn, the fastest counts."""
    best: Dict[str, float] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.process_time()
            run()
            cost = 1000 * (time.process_time() - started) / count
            best[name] = min(cost, best.get(name, cost))
    return best


def convert(given: DataSet, output: str, jobs: int, *options: str) -> float:
    """Seconds of processor time of `estimator-det convert`, with all its processes."""
    process = start(given, output, jobs, *options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"convert failed with code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def start(given: DataSet, output: str, jobs: int, *options: str) -> subprocess.Popen[bytes]:
    """A process of the program."""
    command = [
        sys.executable, "-m", "estimator_det.cli", "convert", "--from=coco", "--to=tfrecord",
        f"--images={given.images}", f"--annotations={given.annotations}",
        f"--output_dir={output}", f"--jobs={jobs}", "--overwrite", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def speed(folder: str, count: int, side: int, repeats: int) -> Dict[str, float]:
    """Milliseconds of processor time for an image, of two bare loops and two conversions."""
    given = data.make(os.path.join(folder, "speed"), count, side)
    runs: Dict[str, Callable[[], object]] = {}
    for verify in (HEADER, DECODE):
        runs[f"bare loop, {verify}"] = make_loop(given, folder, decode=verify == DECODE)
        runs[f"convert, {verify}"] = make_conversion(given, folder, verify)
    return milliseconds(runs, count, repeats)


def memory(folder: str, count: int, jobs: int) -> Dict[str, float]:
    """Megabytes that the program and its largest process needed at most, and images per second."""
    given = data.make(folder, count, SMALL_SIDE)
    process = start(given, os.path.join(folder, "out"), jobs)
    started = time.perf_counter()
    most, most_of_worker = 0.0, 0.0
    while process.poll() is None:
        most = max(most, _peak(process.pid))
        most_of_worker = max([most_of_worker, *map(_peak, _children(process.pid))])
        time.sleep(POLL_SECONDS)
    if process.returncode:
        raise RuntimeError(f"convert failed with code {process.returncode}")
    seconds = time.perf_counter() - started
    return {"main": most, "worker": most_of_worker, "images per second": count / seconds}


def _peak(process: int) -> float:
    """Megabytes; 0 of a process that has ended."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as file:
            lines = [line for line in file if line.startswith("VmHWM")]
    except OSError:
        return 0.0
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def _children(process: int) -> List[int]:
    try:
        with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:  # it has ended
        return []


def killed(folder: str, count: int, jobs: int) -> bool:
    """Whether a conversion that is killed half-way resumes to the bytes of one that is not."""
    given = data.make(folder, count, SMALL_SIDE)
    whole, output = os.path.join(folder, "whole"), os.path.join(folder, "killed")
    shards = 20
    option = f"--num_shards={shards}"
    convert(given, whole, jobs, option)
    process = start(given, output, jobs, option)
    mark = os.path.join(output, ".convert", f"result-{shards // 2:05d}.json")
    while not os.path.exists(mark) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    was_running = process.wait() == -signal.SIGKILL
    convert(given, output, jobs, option)
    return was_running and _hashes(whole) == _hashes(output)


def _hashes(folder: str) -> Dict[str, str]:
    found = {}
    for name in sorted(os.listdir(folder)):
        if ".record-" in name:
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = hashlib.sha256(file.read()).hexdigest()
    return found


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500, help="of the measurement of speed")
    parser.add_argument("--side", type=int, default=480, help="of these images, in pixels")
    parser.add_argument("--repeats", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--records", type=int, nargs="*", default=[10_000, 50_000, 100_000])
    parser.add_argument("--jobs", type=int, default=available_cpus())
    parser.add_argument("--folder", help="for temporary files")
    options = parser.parse_args(argv)
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        found = speed(folder, options.images, options.side, options.repeats)
        for name, cost in found.items():
            loop = found[f"bare loop, {name.split(', ')[1]}"]
            ratio = f"  {loop / cost:.2f} × the images of the loop" if cost != loop else ""
            report(f"{name:<20} {cost:>7.3f} ms of one processor per image{ratio}")
        for count in options.records:
            needed = memory(os.path.join(folder, str(count)), count, options.jobs)
            report(f"{count:>9,} records: " + ", ".join(f"{k} {v:,.0f}" for k, v in needed.items()))
            shutil.rmtree(os.path.join(folder, str(count)))
        same = killed(os.path.join(folder, "killed"), 4000, options.jobs)
        report(f"killed and resumed: {'the same bytes' if same else 'OTHER BYTES'}")
    finally:
        shutil.rmtree(folder)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
