"""Programs that take training steps in turn, and figures of their turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple, Sequence

ONE = "1 replica on one core"
TWO = "2 replicas on two cores"
APART = "2 programs of 1 replica, each on a core of its own"

_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/stat, in a second


class Turn(NamedTuple):
    """Steps of programs that ran at the same time."""

    images_per_second: float  # of all programs together
    cpu_seconds_per_image: float
    ready: float  # threads of a replica that ran, or waited for a core alone, on average
    others: float  # share of the cores' time that anything else used


Round = Dict[str, Turn]  # a turn of each kind, one after the other


class Program:
    """A process of one replica on each of its cores, which takes steps on request.

    Args:
        cores: Numbers of the processor's cores.
        batch_size: Images of a replica.
    """

    def __init__(self, cores: Sequence[int], batch_size: int) -> None:
        self.replicas, self.step_images = len(cores), len(cores) * batch_size
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scaling.replicas", str(len(cores)), str(batch_size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def start(self, num_steps: int) -> None:
        assert self._process.stdin is not None
        print(num_steps, file=self._process.stdin, flush=True)

    def wait(self) -> Dict[str, float]:
        """The `seconds`, `cpu_seconds` and `ready_seconds` of the steps that it has taken."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a program of replicas ended with code {self._process.wait()}")
        answer: Dict[str, float] = json.loads(line)
        return answer


def take(programs: Sequence[Program], cores: Sequence[int], num_steps: int) -> Turn:
    """A turn of all programs at the same time.

    Args:
        programs: They wait for it.
        cores: All that the comparison uses, whether these programs use them or not.
        num_steps: Of each program.
    """
    start, busy = time.perf_counter(), _busy_seconds(cores)
    for program in programs:
        program.start(num_steps)
    answers = [program.wait() for program in programs]
    seconds, busy = time.perf_counter() - start, _busy_seconds(cores) - busy
    images = [program.step_images * num_steps for program in programs]
    own = sum(answer["cpu_seconds"] for answer in answers)
    return Turn(
        sum(number / answer["seconds"] for number, answer in zip(images, answers)),
        own / sum(images),
        sum(answer["ready_seconds"] for answer in answers)
        / sum(program.replicas * answer["seconds"] for program, answer in zip(programs, answers)),
        max(busy - own, 0.0) / (seconds * len(cores)),
    )


def _busy_seconds(cores: Sequence[int]) -> float:
    """Time that anything has used the cores, since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        rows = dict(line.split(maxsplit=1) for line in file if line.startswith("cpu"))
    busy = 0
    for core in cores:
        user, nice, system, _, _, *interrupts = map(int, rows[f"cpu{core}"].split()[:8])
        busy += user + nice + system + sum(interrupts)  # stolen by other machines, too
    return busy / _TICKS


def calmest(rounds: Sequence[Round], number: int) -> List[Round]:
    """The rounds in which others used the cores least."""
    return sorted(rounds, key=lambda each: max(turn.others for turn in each.values()))[:number]


def report(rounds: Sequence[Round]) -> List[str]:
    """Lines with the medians of rounds, and the efficiency."""
    lines = []
    for name in (ONE, TWO, APART):
        speed, cpu, ready, others = map(statistics.median, zip(*(each[name] for each in rounds)))
        lines.append(
            f"{name}: {speed:.1f} images/s, {1000 * cpu:.1f} ms of processor time an image, "
            f"{ready:.2f} threads of a replica ready; others used {others:.0%} of the cores"
        )
    lines.append(f"efficiency: {_efficiency(rounds, TWO):.2f}")
    lines.append(
        f"of two programs: {_efficiency(rounds, APART):.2f}, the most that the cores allow"
    )
    return lines


def _efficiency(rounds: Sequence[Round], name: str) -> float:
    """Median of the speed over twice that of one replica in the same round."""
    return statistics.median(
        each[name].images_per_second / (2 * each[ONE].images_per_second) for each in rounds
    )
