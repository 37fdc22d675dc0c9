"""Files, local or remote: the ways to read and to write them, and some formats, each in one module.

Imports NumPy and Pillow, and TensorFlow for remote paths and in `lock`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import pathlib
import stat
from typing import Any, Iterator, List, Optional

from estimator_det.errors import UsageError
from estimator_det.files.atomic import AnyPath, is_remote
from estimator_det.files.atomic import write as write_text

__all__ = [
    "AnyPath", "bracket_hint", "exists", "folders_with", "is_remote", "matching", "read_bytes",
    "read_text", "removed_if_empty", "special_kind", "write_text",
]  # fmt: skip


def _gfile() -> Any:
    from estimator_det.compat import tf

    return tf.io.gfile


def exists(path: str) -> bool:
    """Whether there is such a file or folder."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def matching(pattern: str) -> List[str]:
    """The paths that match a glob pattern, sorted, or the one of exactly this name."""
    if paths := sorted(_gfile().glob(pattern)):
        return paths
    # A loop of links exists for no other function.
    return [pattern] if exists(pattern) or special_kind(pattern) else []


def folders_with(folder: str, name: str) -> List[str]:
    """The folders in a local folder that have a file of this name."""
    paths = glob.glob(os.path.join(glob.escape(folder), "*", name))
    return sorted(map(os.path.dirname, paths))


def bracket_hint(pattern: str) -> str:
    """Says what to do if `[` is meant as itself in a pattern that matches nothing; else empty."""
    return "; write [[] for a [ in a name" if "[" in pattern else ""


@contextlib.contextmanager
def removed_if_empty(folder: str) -> Iterator[None]:
    """At the end, a folder that did not exist before is removed if nothing is in it.

    So are the folders above it that did not exist. What is refused leaves no trace.
    """
    new: List[str] = []
    path = folder.rstrip("/")
    while path and not exists(path):
        new.append(path)
        path = os.path.dirname(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # something is in it
            for path in new:
                _remove_empty(path)


def _remove_empty(folder: str) -> None:
    """Removes an empty folder; OSError if something is in a local one."""
    if not is_remote(folder):
        os.rmdir(folder)
    elif _gfile().isdir(folder) and not _gfile().listdir(folder):
        _gfile().rmtree(folder)


def special_kind(path: AnyPath) -> str:
    """Kind of a local path that is not a regular file, e.g. "a named pipe"; "" for any other path.

    A link that leads back to itself is "a loop of symbolic links".

    Opening a named pipe waits for a writer, and a device may have no end.
    """
    path = os.fspath(path)
    if is_remote(path):
        return ""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "a loop of symbolic links" if error.errno == errno.ELOOP else ""
    kinds = (
        (stat.S_ISREG, ""),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((kind for is_kind, kind in kinds if is_kind(mode)), "a device")


def read_text(path: AnyPath, max_bytes: Optional[int] = None) -> str:
    """The text of a UTF-8 file; a leading byte order mark is dropped."""
    content = read_bytes(path, max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not a text file: byte {content[error.start]:#04x} at position {error.start} "
            "is not UTF-8"
        ) from None


def read_bytes(path: AnyPath, max_bytes: Optional[int] = None) -> bytes:
    """The content of a file; UsageError if it cannot be read or has more than `max_bytes`."""
    path = os.fspath(path)
    if is_remote(path):
        return _read_remote(path, max_bytes)
    local = pathlib.Path(path)
    if kind := special_kind(path):
        raise UsageError(f"{path}: is {kind}, not a file")
    if not local.is_file():
        folder = local.parent
        addition = "" if folder.is_dir() else f"; there is no folder {folder} either"
        raise UsageError(f"{path}: no such file{addition}")
    _check_size(path, local.stat().st_size, max_bytes)
    return local.read_bytes()


def _check_size(path: str, size: int, max_bytes: Optional[int]) -> None:
    if max_bytes is not None and size > max_bytes:
        raise UsageError(
            f"{path}: has {size:,} bytes; allowed: {max_bytes:,}. Check that it is the right file, "
            "or shorten it"
        )


def _read_remote(path: str, max_bytes: Optional[int]) -> bytes:
    from estimator_det.compat import tf

    try:
        if not tf.io.gfile.exists(path):
            raise UsageError(f"{path}: no such file")
        if max_bytes is not None:
            _check_size(path, tf.io.gfile.stat(path).length, max_bytes)
        with tf.io.gfile.GFile(path, "rb") as file:
            return bytes(file.read())
    except tf.errors.OpError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.message}; check the path, and the rights and "
            "credentials of this process"
        ) from None
