import subprocess
import sys

import pytest

from inputs import machine

# Frees a tensor of 8 MB twice: glibc's own limit has grown past it by the second time.
PROGRAM = """
import numpy as np
from inputs import machine
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
machine.return_freed_memory()
for _ in range(2):
    large = np.ones(8 << 20, np.uint8)
    above = bytearray(300000)  # keeps what is below it from being trimmed
    with_it = held()
    del large
print((with_it - held()) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_tensors_go_back():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={}, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) >= 7


def test_what_the_environment_sets_is_left(monkeypatch):
    opened = []
    monkeypatch.setattr(machine.ctypes, "CDLL", opened.append)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    machine.return_freed_memory()
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    machine.return_freed_memory()
    assert opened == []
