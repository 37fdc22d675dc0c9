import _ctypes
import shutil
import sys

import pytest

from tests.processes import run_python

PROGRAM = """
import ctypes, sys
from inputs import machine
print(machine.allocator())
ctypes.CDLL(sys.argv[1])
print(machine.allocator())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux lists what is mapped")
def test_the_allocator_is_named_by_its_library(tmp_path):
    library = shutil.copy(_ctypes.__file__, tmp_path / "libjemalloc.so.2")
    assert run_python("-c", PROGRAM, str(library), env={}).stdout == "glibc\njemalloc\n"
