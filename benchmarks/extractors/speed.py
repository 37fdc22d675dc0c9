"""Steps of whole detectors and of their bare networks, in turns on the same machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from typing import Any, Iterator, List, NamedTuple, Tuple

from benchmarks.extractors import usual

PARTS = ("network", "heads", "whole")
MODES = ("train", "infer")
LIMIT = 1.25
LARGEST = 8e9  # multiply-adds of an image; sides are halved until it has no more
MIN_ROUNDS, MAX_ROUNDS = 2, 10
SECONDS = 4.0  # of rounds, after the least number
SMALLEST = 129  # pixels; some networks take no smaller image


class Part:
    """A worker process, see `worker`."""

    def __init__(self, kind: str, part: str) -> None:
        self.name = part
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.extractors", "--worker", kind, part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *command: Any) -> None:
        """Sends a command without waiting for its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """The result of the oldest command."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.name!r} ended: {self._process.wait()}")
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        """Sends a command and returns its result."""
        self.send(*command)
        return self.receive()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Times(NamedTuple):
    """Seconds of a step of each part, the least of all rounds."""

    network: float
    heads: float  # network and heads
    whole: float


class Row(NamedTuple):
    """What was measured of a type at a batch size."""

    kind: str
    mode: str
    batch: int
    size: int
    clock: Times
    processors: Times  # of all together; more reliable where others use the machine too
    graph_seconds: float
    operations: int


def _side(size: int, count: int) -> int:
    """A side of images that are cheap enough to be measured."""
    while count > LARGEST and size // 2 >= SMALLEST and size % 2 == 0:
        size, count = size // 2, count // 4
    return size


def _rounds(parts: List[Part]) -> Tuple[Times, Times]:
    """Least seconds of a step of each part, by the clock and of processors; they take turns."""
    turns: List[List[Tuple[float, float]]] = []
    start = time.monotonic()
    while len(turns) < MIN_ROUNDS or (
        len(turns) < MAX_ROUNDS and time.monotonic() - start < SECONDS
    ):
        turns.append([part.ask("step") for part in parts])
    least = [[min(seconds) for seconds in zip(*steps)] for steps in zip(*turns)]
    return Times(*(clock for clock, _ in least)), Times(*(busy for _, busy in least))


def measure(kind: str, batches: List[int]) -> Iterator[Row]:
    """Rows of one type: training and inference at each batch size."""
    with contextlib.ExitStack() as stack:
        parts = [Part(kind, name) for name in PARTS]
        for part in parts:
            stack.callback(part.end)
        size = usual.usual(kind).size
        if not kind.startswith("embedded"):  # which has this size only
            size = _side(size, parts[0].ask("count"))
        for mode in MODES:
            for batch in batches:
                for part in parts:
                    part.send(mode, size, batch)
                built = [part.receive() for part in parts]
                clock, processors = _rounds(parts)
                yield Row(
                    kind=kind,
                    mode=mode,
                    batch=batch,
                    size=size,
                    clock=clock,
                    processors=processors,
                    graph_seconds=built[-1]["seconds"],
                    operations=built[-1]["operations"],
                )


COLUMNS = (
    "Type",
    "Input",
    "Batch",
    "Mode",
    "Network (ms)",
    "Whole (ms)",
    "x network",
    "in processor time",
    "x network and heads",
    "in processor time",
    "Graph (s)",
    "Operations",
)


def cells(row: Row) -> List[str]:
    """The row as text; ratios over the limit are marked."""

    def ratio(value: float) -> str:
        return f"{value:.2f}" + (" *" if value > LIMIT else "")

    return [
        f"`{row.kind}`",
        str(row.size),
        str(row.batch),
        row.mode,
        f"{1000 * row.clock.network:.0f}",
        f"{1000 * row.clock.whole:.0f}",
        ratio(row.clock.whole / row.clock.network),
        ratio(row.processors.whole / row.processors.network),
        ratio(row.clock.whole / row.clock.heads),
        ratio(row.processors.whole / row.processors.heads),
        f"{row.graph_seconds:.1f}",
        str(row.operations),
    ]
