"""`python -m benchmarks.serving`: `estimator-det serve` under load, beside the bare detector.

The model has random weights. The server is a process with the default options; 16 clients are
threads of this one. Bare detector and server are measured in turns, since other processes of the
machine slow both; their processor times of an image do not contain those.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Counter, Dict, List, Optional

from benchmarks.serving import client
from benchmarks.serving.client import Client

CLIENTS = 16
BATCH = 8
START_SECONDS = 300  # for the server, and for a new version
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Figures = Dict[str, Any]


class Server:
    """A process of `estimator-det serve`."""

    def __init__(self, path: pathlib.Path, log: pathlib.Path) -> None:
        with socket.create_server((client.HOST, 0)) as free:
            self.port = free.getsockname()[1]
        self.log = log
        command = [sys.executable, "-m", "estimator_det", "serve", str(path)]
        with open(log, "w", encoding="utf-8") as file:
            command += ["--port", str(self.port)]
            self.process = subprocess.Popen(command, stdout=file, stderr=file)
        self._proc = pathlib.Path(f"/proc/{self.process.pid}")
        last = time.monotonic() + START_SECONDS
        while not self.is_open():
            if self.process.poll() is not None or time.monotonic() > last:
                raise RuntimeError(log.read_text(encoding="utf-8"))
            time.sleep(0.2)

    def is_open(self) -> bool:
        """True if it answers."""
        with contextlib.suppress(ConnectionRefusedError):
            return Client(self.port).ask(client.http_request("/healthz", method="GET"))[0] == 200
        return False

    def version(self) -> int:
        """The version that is served."""
        request = client.http_request("/v1/models/detector", method="GET")
        states = json.loads(Client(self.port).ask(request)[1])["model_version_status"]
        return max(int(each["version"]) for each in states if each["state"] == "AVAILABLE")

    def processor_seconds(self) -> float:
        """Processor time of all its threads so far."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self) -> float:
        """Resident memory."""
        return int((self._proc / "statm").read_text().split()[1]) * _PAGE / 1e6


def _served(server: Server, request: bytes, seconds: float) -> Dict[str, float]:
    """Images per second of all clients, and processor time of the server."""
    counts = [0] * CLIENTS
    began, used = time.monotonic(), server.processor_seconds()

    def work(connection: Client, number: int) -> None:
        while time.monotonic() < began + seconds:
            counts[number] += connection.ask(request)[0] == 200

    client.load(server.port, CLIENTS, work)
    used, total = server.processor_seconds() - used, sum(counts)
    return {"rate": total / (time.monotonic() - began), "processor_ms": 1000 * used / total}


def throughput(server: Server, arguments: argparse.Namespace) -> Figures:
    """Images per second of the server and of the bare detector, in turns."""
    command = [sys.executable, "-m", "benchmarks.serving.model", str(arguments.export)]
    bare = subprocess.Popen(
        [*command, str(arguments.photo), str(BATCH)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def turn(seconds: float) -> Dict[str, Dict[str, float]]:
        assert bare.stdin is not None and bare.stdout is not None
        print(seconds, file=bare.stdin, flush=True)
        detected = json.loads(bare.stdout.readline())
        return {"bare": detected, "served": _served(server, arguments.request, seconds)}

    with bare:
        turn(1)  # warm up
        turns = [turn(arguments.seconds) for _ in range(arguments.turns)]
        bare.kill()
    figures: Figures = {
        f"{place}_{key}": statistics.median(each[place][key] for each in turns)
        for place in ("bare", "served")
        for key in ("rate", "processor_ms")
    }
    ratios = sorted(each["served"]["rate"] / each["bare"]["rate"] for each in turns)
    return {**figures, "ratio": statistics.median(ratios), "ratios": ratios}


def latency(server: Server, arguments: argparse.Namespace) -> Figures:
    """Latencies at half of the most images per second: each client asks at even times."""
    rate = arguments.rate or _served(server, arguments.request, arguments.seconds)["rate"]
    pause = 2 * CLIENTS / rate
    began = time.monotonic() + 0.1
    times: List[float] = []

    def work(connection: Client, number: int) -> None:
        due = began + pause * number / CLIENTS
        while due < began + arguments.turns * arguments.seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            connection.ask(arguments.request)
            times.append(1000 * (time.monotonic() - due))  # a late request waits since it was due
            due += pause

    client.load(server.port, CLIENTS, work)
    percentiles = statistics.quantiles(times, n=100)
    p50, p99 = percentiles[49], percentiles[98]
    return {"half_rate": rate / 2, "p50_ms": p50, "p99_ms": p99, "p99_by_p50": p99 / p50}


def memory(server: Server, arguments: argparse.Namespace) -> Figures:
    """Growth of memory over requests, after the first tenth of them has filled caches."""
    sizes = []
    for count in (arguments.requests // 10, arguments.requests - arguments.requests // 10):

        def work(connection: Client, number: int, count: int = count) -> None:
            for _ in range(number, count, CLIENTS):
                connection.ask(arguments.request)

        client.load(server.port, CLIENTS, work)
        sizes.append(server.memory_mb())
    return {"memory_mb": sizes[0], "memory_end_mb": sizes[1], "growth": sizes[1] / sizes[0] - 1}


def mutations(server: Server, arguments: argparse.Namespace) -> Figures:
    """Statuses of answers to whole requests with random damage."""
    statuses: Counter[str] = collections.Counter()

    def work(connection: Client, number: int) -> None:
        for seed in range(number, arguments.mutated, CLIENTS):
            request = client.mutated(arguments.body, random.Random(seed))
            statuses[client.status_of(server.port, request)] += 1

    client.load(server.port, CLIENTS, work)
    return {
        "mutated_statuses": dict(sorted(statuses.items())),
        "traces": server.log.read_text(encoding="utf-8").count("Traceback"),
        "answers_afterwards": server.process.poll() is None and server.is_open(),
    }


def versions(server: Server, arguments: argparse.Namespace) -> Figures:
    """Statuses while versions change under load, until SIGTERM ends the server."""
    statuses: Counter[str] = collections.Counter()

    def work(connection: Client, number: int) -> None:
        while True:
            try:
                statuses[str(connection.ask(arguments.request)[0])] += 1
            except ConnectionRefusedError:  # nothing was begun
                return
            except OSError as error:
                statuses[type(error).__name__] += 1

    clients = threading.Thread(target=client.load, args=(server.port, CLIENTS, work))
    clients.start()
    folder = arguments.export.parent
    for number in range(2, arguments.changes + 2):
        shutil.copytree(arguments.export, folder / "unfinished")
        (folder / "unfinished").rename(folder / str(number))
        last = time.monotonic() + START_SECONDS
        while server.version() != number and time.monotonic() < last:
            time.sleep(0.2)
    served = server.version()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait()
    clients.join()
    lost = sum(count for status, count in statuses.items() if status != "200")
    return {"version": served, "exit_code": code, "statuses": dict(statuses), "lost": lost}


PARTS = {
    "throughput": throughput,
    "latency": latency,
    "memory": memory,
    "mutations": mutations,
    "versions": versions,  # ends the server
}


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--config", required=True, help="pipeline configuration of the model")
    parser.add_argument("--photo", required=True, type=pathlib.Path, help="JPEG file")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure just these parts")
    counts = {"--turns": 5, "--requests": 20_000, "--changes": 20, "--mutated": 10_000}
    for name, value in counts.items():
        parser.add_argument(name, type=int, default=value, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn (%(default)s)")
    parser.add_argument("--rate", type=float, help="images/s that latency is measured at half of")
    return parser.parse_args(argv)


def main(argv: Optional[List[str]] = None) -> None:
    """Prints the figures of each part when it has ended."""
    arguments = _parse(argv)
    arguments.body = arguments.photo.read_bytes()
    arguments.request = client.http_request("/v1/detect", arguments.body)
    with tempfile.TemporaryDirectory() as scratch:
        arguments.export = pathlib.Path(scratch) / "versions" / "1"
        command = [sys.executable, "-m", "benchmarks.serving.model", arguments.config]
        subprocess.run([*command, str(arguments.export)], check=True, capture_output=True)
        server = Server(arguments.export.parent, pathlib.Path(scratch) / "log")
        try:
            for name in [each for each in PARTS if each in (arguments.only or PARTS)]:
                figures = PARTS[name](server, arguments)
                arguments.rate = arguments.rate or figures.get("served_rate")
                for key, value in figures.items():
                    print(f"{name} {key}: {value}", flush=True)
        finally:
            server.process.kill()


if __name__ == "__main__":
    main()
