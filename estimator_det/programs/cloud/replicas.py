"""The processes of a rehearsed job: one for each replica, on this machine."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import time
from typing import Dict, List, Mapping, NamedTuple, Sequence

from estimator_det.console import printing
from estimator_det.errors import RunError
from estimator_det.programs import console
from estimator_det.programs.cloud import vertex
from estimator_det.programs.cloud.jobs import CHIEF, PARAMETER_SERVER, Job

TIMEOUT_SECONDS = 3600.0
LAST_LINES = 15  # last lines of a failed program that are reported
# After the chief has ended, the other processes have this long to end; a service ends them at once.
_GRACE_SECONDS = 120.0
_POLL_SECONDS = 0.2
# Variables that a service sets; the user's own values must not replace them.
_OF_SERVICES = ("TF_CONFIG", "CLUSTER_SPEC", "JOB_DIR", "TPU_NAME", "TPU_CONFIG")
_PREFIXES = ("AIP_", "PYTHON")


class _Process(NamedTuple):
    role: str
    name: str  # role and number, such as "worker 0"
    process: subprocess.Popen[bytes]
    log: pathlib.Path


def run(job: Job, command: Sequence[str], folder: pathlib.Path) -> None:
    """Runs one process for each replica of the job until the chief has ended."""
    free = iter(free_addresses(sum(pool.replicas for pool in job.pools)))
    addresses = {pool.role: list(itertools.islice(free, pool.replicas)) for pool in job.pools}
    output = str(folder / "output")
    for name in ("work", "logs"):
        (folder / name).mkdir(exist_ok=True)
    processes: List[_Process] = []
    try:
        for role, hosts in addresses.items():
            for index in range(len(hosts)):
                variables = vertex.environment(output, addresses, role, index)
                if job.uses_tpu:
                    variables["TPU_NAME"] = "local"
                processes.append(_start(command, variables, folder, role, index))
        _wait(processes)
    finally:
        for each in processes:
            each.process.kill()  # if it still runs
            each.process.wait()


def free_addresses(count: int) -> List[str]:
    """Addresses of this machine with different ports that are free."""
    with contextlib.ExitStack() as stack:
        # All are open until the last one is, so that no port comes twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _start(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: pathlib.Path,
    role: str,
    index: int,
) -> _Process:
    shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    log = folder / "logs" / f"{role}-{index}.log"
    with open(log, "wb") as file:
        file.write(f"{shown} {shlex.join(command)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            command,
            cwd=folder / "work",
            env={**clean_environment(), **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    console.print_line(f"rehearsal: {role} {index} runs; log: {log}")
    return _Process(role, f"{role} {index}", process, log)


def clean_environment() -> Dict[str, str]:
    """The environment of this process without what a service or its image would set."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_SERVICES and not name.startswith(_PREFIXES)
    }


def _wait(processes: Sequence[_Process]) -> None:
    """Waits until all processes but parameter servers have ended."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    working = [each for each in processes if each.role != PARAMETER_SERVER]
    chief_ended = False
    while working:
        for each in processes:
            if each.process.poll():
                raise RunError(_failure(each))
        working = [each for each in working if each.process.poll() is None]
        if not chief_ended and not any(each.role == CHIEF for each in working):
            chief_ended = True
            deadline = time.monotonic() + _GRACE_SECONDS
        if time.monotonic() > deadline:
            if not chief_ended:
                raise RunError(
                    f"rehearsal: the chief has not ended in {TIMEOUT_SECONDS:.0f} s; its last "
                    f"lines:\n{_tail(working[0].log)}"
                )
            names = ", ".join(each.name for each in working)
            console.print_line(
                f"rehearsal: {names} did not end with the chief; a service ends them"
            )
            return
        time.sleep(_POLL_SECONDS)


def _failure(failed: _Process) -> str:
    code = failed.process.returncode
    if code == -signal.SIGKILL:
        return (
            f"rehearsal: the system killed {failed.name}, mostly because memory was used up: lower "
            "train_config.batch_size, the size in image_resizer or shuffle_buffer_size. Its last "
            f"lines:\n{_tail(failed.log)}"
        )
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"rehearsal: {failed.name} failed with {how}; {failed.log}:\n{_tail(failed.log)}"


def _tail(log: pathlib.Path) -> str:
    """The last lines of a log; of JSON lines, as programs write them in jobs, the messages."""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[1:]
    return printing.printable("\n".join(map(_message, lines[-LAST_LINES:])))


def _message(line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return line
    return str(entry["message"]) if isinstance(entry, dict) and "message" in entry else line
