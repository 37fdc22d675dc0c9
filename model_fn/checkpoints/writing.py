"""Checks that results can be written before a run starts, and errors that name what cannot be."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from typing import Any, Iterator, List, Optional

from estimator_det.compat import tf
from estimator_det.config import files
from model_fn.checkpoints.errors import FolderNotWritableError, RunError

# Event files fail with the built-in errors that their C++ writer's codes are turned into.
POSSIBLE = (tf.errors.OpError, OSError, RuntimeError, IndexError)
_PROBE_BYTES = 64 * 1024
_WRITE_ERRORS = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "File too large",
    "Input/output error",
)

_FULL = ("no space left on device", "disk quota exceeded", "file too large")


@contextlib.contextmanager
def into_folder(folder: str, name: str) -> Iterator[None]:
    """Within, results are written to a folder; it is checked first.

    A new folder without results is removed at the end.

    Args:
        name: What users call the folder, the name of an option.
    """
    with files.removed_if_empty(folder):
        check_folder(folder, name)
        with explained_errors(folder):
            yield


@contextlib.contextmanager
def into_file(path: str, name: str) -> Iterator[None]:
    """As `into_folder`, for a single local file, which may exist."""
    kind = files.special_kind(path)
    if kind in ("a folder", "a loop of symbolic links"):
        raise _refused(f"it is {kind}, not a file", path, name)
    folder = os.path.dirname(os.path.abspath(path))
    with contextlib.ExitStack() as stack:
        if not kind and files.exists(path):
            _check_file(path, name)
        elif not kind:  # opening a pipe would wait for its reader
            stack.enter_context(into_folder(folder, name))
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            if not is_of_writing(error) or path not in str(error):
                raise
            raise explained(error, folder, path, "") from error


def _check_file(path: str, name: str) -> None:
    """Opens a file that exists, without a change to it."""
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise _refused(_cause(error), path, name) from error


def check_folder(folder: str, name: str) -> None:
    """Makes a folder where it is missing, and writes a file there, before anything is built.

    Args:
        name: What users call the folder, the name of an option.
    """
    probe = files.path_in(folder, f"write_test.{os.getpid()}")
    write, remove = (
        (_write_remote, tf.io.gfile.remove) if files.is_remote(folder) else (_write, os.remove)
    )
    try:
        write(folder, probe)
        remove(probe)
    except POSSIBLE as error:
        with contextlib.suppress(tf.errors.OpError, OSError):
            remove(probe)
        raise _refused(_cause(error), folder, name) from error


def _write(folder: str, probe: str) -> None:
    os.makedirs(folder, exist_ok=True)
    with open(probe, "wb") as file:
        file.write(bytes(_PROBE_BYTES))


def _write_remote(folder: str, probe: str) -> None:
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(probe, "wb") as file:
        file.write(bytes(_PROBE_BYTES))


def _refused(cause: str, path: str, name: str) -> FolderNotWritableError:
    return FolderNotWritableError(
        f"{name} cannot be written to: {cause} ({'; '.join([path, *_free(cause, path)])}). "
        f"Nothing was started. Free space or grant permission there, or choose another {name}"
    )


@contextlib.contextmanager
def explained_errors(folder: str, *, kept: str = "") -> Iterator[None]:
    """Within, an error of writing to `folder` becomes a `FolderNotWritableError`.

    That holds for event files, too, which a thread of its own writes; the thread's traceback is
    kept from the terminal.

    Args:
        kept: A sentence for the message: what the error leaves intact.
    """
    old_hook = threading.excepthook

    def hook(arguments: Any) -> None:
        thread, error = arguments.thread, arguments.exc_value
        if thread is not None and thread.name == "EventLoggerThread" and is_of_writing(error):
            return  # The main thread raises the same error at the next event.
        old_hook(arguments)

    threading.excepthook = hook
    try:
        yield
    except RunError:
        raise
    except POSSIBLE as error:
        inside = folder.rstrip("/")
        if not is_of_writing(error) or inside not in str(error):
            raise
        written = re.search(re.escape(inside) + r"/([^\s;:'\"]+)", str(error))
        raise explained(error, folder, written[1] if written else "a file", kept) from error
    finally:
        threading.excepthook = old_hook


def is_of_writing(error: Optional[BaseException]) -> bool:
    """Whether an error reports a file system that cannot be written to."""
    return isinstance(error, POSSIBLE) and any(cause in str(error) for cause in _WRITE_ERRORS)


def explained(error: BaseException, folder: str, what: str, kept: str) -> FolderNotWritableError:
    """The error for a file `what` in a folder; see `explained_errors`."""
    remedy = "Free space or grant permission there, then run the same command again"
    cause = _cause(error)
    free = "".join(f" ({text})" for text in _free(cause, folder))
    return FolderNotWritableError(
        f"{what} could not be written to {folder}: {cause}{free}. "
        + (f"{kept}. {remedy}" if kept else remedy)
    )


def _cause(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    for cause in _WRITE_ERRORS:
        if cause in text:
            return cause.lower()
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "it is a file, or below a file, not a folder"
    if isinstance(error, FileNotFoundError):
        return "no folder can be made there"
    return " ".join(text.split())[:200]


def _free(cause: str, path: str) -> List[str]:
    """The free space in words; none if it has no part in the cause, or is not known."""
    if cause not in _FULL or files.is_remote(path):
        return []
    folder = path
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    try:
        usage = shutil.disk_usage(folder or ".")
    except OSError:
        return []
    if not usage.total:  # not a file system for files
        return []
    return [f"{_megabytes(usage.free)} of {_megabytes(usage.total)} free"]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
