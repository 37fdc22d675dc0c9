"""The CPUs and memory of this machine that are available, and work in several processes."""

from __future__ import annotations

import concurrent.futures
import ctypes
import math
import multiprocessing
import os
import pathlib
import re
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Iterator, List, Optional, Sequence

from estimator_det.errors import RunError

# Flags of processors that compute bfloat16 in hardware; others are slower in it than in float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")

# Limits of a container; version 1 of cgroups has a folder for each resource.
_LIMITS = pathlib.Path("/sys/fs/cgroup")
_ARENA_MAX = -8  # a constant in <malloc.h>
_ARENAS = 2
_ALLOCATOR = re.compile(r"lib((?:tc|je|mi)malloc)")


def available_cpus() -> int:
    """CPUs that this process may use, or fewer by the limit of its container, rounded up."""
    cpus = len(os.sched_getaffinity(0))
    # Microseconds of processor time that all processes may use in each period.
    limit = _limit("cpu.max") or _limit("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    if limit is None or limit[0] < 0:  # version 1 writes -1 for no limit
        return cpus
    return min(cpus, math.ceil(limit[0] / limit[1]))


def available_memory() -> int:
    """Bytes of memory of this machine, or fewer by the limit of its container."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _limit("memory.max") or _limit("memory/memory.limit_in_bytes") or [physical]
    return min(physical, *limit)


def _limit(*names: str) -> Optional[List[int]]:
    """The numbers in these files; None if there is no such limit, or it says "max"."""
    try:
        texts = [(_LIMITS / name).read_text(encoding="ascii") for name in names]
        return [int(word) for text in texts for word in text.split()]
    except (OSError, ValueError):
        return None


def resident_memory() -> Optional[float]:
    """Bytes of main memory that this process holds now; None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def allocator() -> str:
    """The allocator of memory, by the libraries that this process has mapped."""
    path = "/proc/self/maps"
    if not os.path.exists(path):
        return "unknown"
    with open(path, encoding="utf-8", errors="replace") as file:
        loaded = _ALLOCATOR.search(file.read())
    return loaded[1] if loaded else "glibc"


def share_freed_memory() -> None:
    """Lets all threads use the memory that any of them has freed, if glibc allocates it.

    By default each thread of TensorFlow keeps it to itself: 4 % of what Faster R-CNN takes. Nothing
    is changed where the environment sets this already.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or "GLIBC_TUNABLES" in os.environ:
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_ARENA_MAX, _ARENAS)


class ProcessDiedError(RunError):
    """A process that worked on tasks died."""


def run_in_processes(
    function: Callable[[Any, Any], Any],
    shared: Any,
    tasks: Sequence[Any],
    *,
    jobs: int,
    task_name: Callable[[Any], str] = str,  # for errors
) -> Iterator[Any]:
    """The results of `function(shared, task)` in the order of the tasks, from `jobs` processes.

    Functions, tasks and results are pickled, `shared` once for each process. The processes end when
    this one does, regardless of the reason, and when the iterator is closed.
    """
    # Fresh processes: a fork of one in which TensorFlow has run may hang.
    context = multiprocessing.get_context("spawn")
    # The other end closes when this process ends for any reason. An Event would not do: setting it
    # waits for processes that may have died.
    lifeline, held = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        max_workers=min(jobs, max(len(tasks), 1)),
        mp_context=context,
        initializer=_start_process,
        initargs=(lifeline, shared),
    )
    try:
        # The processes never receive Ctrl-C: this one does, and ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [pool.submit(_run_task, function, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in futures:
            try:
                yield future.result()
            except BrokenProcessPool as error:
                ended = [f.done() and not f.cancelled() and not f.exception() for f in futures]
                names = [task_name(task) for task, done in zip(tasks, ended) if not done][:jobs]
                raise ProcessDiedError(
                    "a process died, perhaps because memory ran out; it worked on one of: "
                    f"{', '.join(names)}. Remedy: try again with --jobs 1"
                ) from error
        pool.shutdown()
    finally:
        held.close()  # ends processes that are still working
        pool.shutdown(wait=False, cancel_futures=True)
        lifeline.close()


_SHARED: List[Any] = []  # in a process of `run_in_processes`


def _start_process(lifeline: Any, shared: Any) -> None:
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _SHARED.append(shared)


def _run_task(function: Callable[[Any, Any], Any], task: Any) -> Any:
    return function(_SHARED[0], task)


def _end_with(lifeline: Any) -> None:
    """Ends this process when the other end of a pipe is closed."""
    lifeline.poll(None)
    os._exit(1)


def has_bfloat16() -> bool:
    """True if this processor computes bfloat16 in hardware."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return not set(BFLOAT16_FLAGS).isdisjoint(file.read().split())
    except OSError:
        return False
