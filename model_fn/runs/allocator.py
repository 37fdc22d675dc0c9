"""How the C library hands out memory to a training process."""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of <malloc.h>
_LARGE_BYTES = 1024 * 1024
_ARENAS = 2


def return_freed_memory() -> None:
    """Makes glibc give large tensors back to the system as soon as they are freed.

    By default its limit of what is "large" grows with what a program frees, up to 32 MB, and each
    thread of TensorFlow keeps freed memory to itself: 4 % of what Faster R-CNN takes. Nothing is
    changed where the environment sets this already, or another allocator is in use.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or "GLIBC_TUNABLES" in os.environ:
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_ARENA_MAX, _ARENAS)
