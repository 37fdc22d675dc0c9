import sys

import pytest

from inputs import machine
from tests.processes import run_python

# Threads that allocate at the same time have an arena each, by default.
PROGRAM = """
import re, threading
from inputs import machine
machine.share_freed_memory()
print(machine.allocator())
barrier = threading.Barrier(6)
def allocate():
    barrier.wait()
    large = bytearray(100000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
machine.ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_threads_share_freed_memory():
    done = run_python("-c", PROGRAM, env={})
    assert done.stdout == "glibc\n"
    assert 1 <= done.stderr.count("Arena ") <= 2


def test_what_the_environment_sets_is_left(monkeypatch):
    opened = []
    monkeypatch.setattr(machine.ctypes, "CDLL", opened.append)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    machine.share_freed_memory()
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    machine.share_freed_memory()
    assert opened == []


@pytest.mark.parametrize(
    "limit, expected",
    [("max 100000", 8), ("150000 100000", 2), ("20000 100000", 1), ("1600000 100000", 8)],
)
def test_a_container_has_fewer_cpus_than_its_machine(tmp_path, monkeypatch, limit, expected):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "_LIMITS", tmp_path)
    assert machine.available_cpus() == 8, "no limit"
    (tmp_path / "cpu").mkdir()
    for name, value in zip(("quota", "period"), limit.replace("max", "-1").split()):
        (tmp_path / "cpu" / f"cpu.cfs_{name}_us").write_text(f"{value}\n")
    assert machine.available_cpus() == expected, "version 1"
    (tmp_path / "cpu" / "cpu.cfs_quota_us").unlink()
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert machine.available_cpus() == expected


def test_a_container_has_less_memory_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_LIMITS", tmp_path)
    physical = machine.available_memory()
    (tmp_path / "memory").mkdir()
    for name in ("memory/memory.limit_in_bytes", "memory.max"):
        for limit, expected in (("max", physical), ("1048576", 1 << 20), (str(1 << 62), physical)):
            (tmp_path / name).write_text(f"{limit}\n")
            assert machine.available_memory() == expected
