"""Checks that results can be written before a run starts, and errors that name what cannot be."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from typing import Any, Iterator, Optional

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import FolderNotWritableError, RunError

# The C++ writer of event files turns its codes into built-in errors.
WRITE_ERRORS = (tf.errors.OpError, OSError, RuntimeError, IndexError)
_PROBE_BYTES = 64 * 1024  # more than a full disk takes in the last block of another file
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
# Texts, because TensorFlow has one code for a full disk and for memory.
_CAUSES = (
    *_FULL,
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "Input/output error",
)


@contextlib.contextmanager
def writable_folder(folder: str, name: str, *, kept: str = "") -> Iterator[None]:
    """Context manager in which results are written to a folder, which is checked first.

    A new folder without results is removed at the end. `name` is the option that names the folder;
    for `kept` and errors see `explained_errors`.
    """
    with files.removed_if_empty(folder):
        check_folder(folder, name)
        with explained_errors(folder, kept=kept):
            yield


@contextlib.contextmanager
def writable_file(path: str, name: str) -> Iterator[None]:
    """Like `writable_folder`, for a single local file, which may exist."""
    kind = files.special_kind(path)
    if kind in ("a folder", "a loop of symbolic links"):
        raise _refusal(f"it is {kind}, not a file", path, name)
    folder = os.path.dirname(os.path.abspath(path))
    with files.removed_if_empty(folder):
        if not files.exists(path):
            check_folder(folder, name)
        elif not kind:  # Opening a pipe would wait for its reader.
            try:
                open(path, "ab").close()  # changes nothing
            except OSError as error:
                raise _refusal(_cause(error), path, name) from error
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            if not is_write_error(error) or path not in str(error):
                raise
            raise explained(error, folder, path, "") from error


def check_folder(folder: str, name: str) -> None:
    """Creates a folder if it is missing, and writes a file there, before anything is built."""
    probe = os.path.join(folder, f"write_test.{os.getpid()}")
    try:
        files.write_text(probe, bytes(_PROBE_BYTES))
        (tf.io.gfile if files.is_remote(folder) else os).remove(probe)
    except WRITE_ERRORS as error:
        raise _refusal(_cause(error), folder, name) from error


def _refusal(cause: str, path: str, name: str) -> FolderNotWritableError:
    free = _free_space(cause, path)
    return FolderNotWritableError(
        f"{name} cannot be written to: {cause} ({path}{free and '; ' + free}). "
        f"Nothing was started. Free space or grant permission there, or choose another {name}"
    )


@contextlib.contextmanager
def explained_errors(folder: str, *, kept: str = "") -> Iterator[None]:
    """Context manager: an error of writing to `folder` becomes a `FolderNotWritableError`.

    Args:
        kept: A sentence for the message about what the error leaves intact.
    """
    old_hook = threading.excepthook

    def hook(arguments: Any) -> None:
        thread, error = arguments.thread, arguments.exc_value
        # The main thread raises the error of this thread again, at the next event.
        if thread is None or thread.name != "EventLoggerThread" or not is_write_error(error):
            old_hook(arguments)

    threading.excepthook = hook
    try:
        yield
    # A `RunError` says already what is wrong; its text may contain the words of a write error.
    except RunError:
        raise
    except WRITE_ERRORS as error:
        prefix = folder.rstrip("/")
        if not is_write_error(error) or prefix not in str(error):
            raise
        file = re.search(re.escape(prefix) + r"/([^\s;:'\"]+)", str(error))
        raise explained(error, folder, file[1] if file else "a file", kept) from error
    finally:
        threading.excepthook = old_hook


def is_write_error(error: Optional[BaseException]) -> bool:
    """True if an error reports a file system that cannot be written to."""
    return isinstance(error, WRITE_ERRORS) and any(cause in str(error) for cause in _CAUSES)


def explained(error: BaseException, folder: str, name: str, kept: str) -> FolderNotWritableError:
    """Error for the file `name` in a folder; see `explained_errors`."""
    cause = _cause(error)
    free = _free_space(cause, folder)
    return FolderNotWritableError(
        f"{name} could not be written to {folder}: {cause}{free and f' ({free})'}. "
        f"{kept and kept + '. '}Free space or grant permission there, then run the same command "
        "again"
    )


def _cause(error: BaseException) -> str:
    text = getattr(error, "message", "") if hasattr(error, "node_def") else str(error)
    for cause in _CAUSES:
        if cause in text:
            return cause.lower()
    if isinstance(error, (FileExistsError, NotADirectoryError, tf.errors.FailedPreconditionError)):
        return "it is a file, or below a file, not a folder"
    if isinstance(error, (FileNotFoundError, tf.errors.NotFoundError)):
        return "no folder can be created there"
    return " ".join(text.split())[:200]


def _free_space(cause: str, path: str) -> str:
    if cause not in map(str.lower, _FULL) or not os.path.exists(path):
        return ""
    usage = shutil.disk_usage(path)
    if not usage.total:  # not a file system for files, such as /proc
        return ""
    return f"{usage.free / 1e6:,.1f} MB of {usage.total / 1e6:,.1f} MB free"
