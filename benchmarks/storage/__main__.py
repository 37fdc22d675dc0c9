"""Copies 1,000 small files and one of 1 GB to an emulator and back: throughput and memory.

    python -m benchmarks.storage

Needs gcp-storage-emulator (extra `test`). The emulator is a process of its own, which keeps all
bytes in memory: about 4 GB. It takes most of the time: the processor time is that of the client.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Callable, List

from estimator_det.config import printing

SERVE = (
    "import sys, time; from gcp_storage_emulator.server import create_server\n"
    "server = create_server('127.0.0.1', 0, in_memory=True, default_bucket='bench', data_dir='/')\n"
    "server._storage._write_config_to_file = lambda: None\n"  # else all names at every request
    "server.start(); print(server._api._httpd.server_port, flush=True); sys.stdin.read()\n"
    "server.stop()\n"
)


def main(arguments: List[str]) -> int:
    """Runs the program; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--large_mb", type=int, default=1000)
    options = parser.parse_args(arguments)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with tempfile.TemporaryDirectory() as folder:
            _run(pathlib.Path(folder), options.files, options.large_mb)
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()
    return 0


def _run(folder: pathlib.Path, num_files: int, large_mb: int) -> None:
    from estimator_det.programs.cloud import storage

    small, large = folder / "small", folder / "large"
    small.mkdir()
    large.mkdir()
    for index in range(num_files):
        (small / f"{index:05d}.record").write_bytes(os.urandom(10_000))
    with (large / "large.record").open("wb") as file:
        for _ in range(large_mb):
            file.write(os.urandom(1_000_000))
    printing.report("| Copy | MB | seconds | MB/s | processor s | most memory, MB |")
    printing.report("|---|---|---|---|---|---|")
    for source, megabytes in ((small, num_files / 100), (large, large_mb)):
        target, back = f"gs://bench/{source.name}", str(folder / "back" / source.name)
        up = functools.partial(storage.upload, [str(source)], target)
        _report(f"{source.name}, up", megabytes, up)
        _report(
            f"{source.name}, down", megabytes, functools.partial(storage.download, [target], back)
        )


def _report(name: str, megabytes: float, copy: Callable[[], object]) -> None:
    """Prints a row; memory is the peak of the process so far, so small files come first."""
    processor, started = time.process_time(), time.monotonic()
    copy()
    seconds, processor = time.monotonic() - started, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    printing.report(
        f"| {name} | {megabytes:.0f} | {seconds:.1f} | {megabytes / seconds:.1f} | {processor:.1f} "
        f"| {peak:.0f} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
