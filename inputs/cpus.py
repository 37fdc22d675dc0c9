"""How much of this machine there is to work with."""

from __future__ import annotations

import os


def available_cpus() -> int:
    """CPUs that this process may use; a container may have fewer than its machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
