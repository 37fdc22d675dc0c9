"""The CPUs and memory of this machine that are available."""

from __future__ import annotations

import os


def available_cpus() -> int:
    """CPUs that this process may use; a container may have fewer than its machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of memory that this machine has; those of a container may be fewer."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(physical, int(file.read()))
    except (OSError, ValueError):  # No such limit, or it says "max".
        return physical
