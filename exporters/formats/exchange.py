"""Exchanges the export in a folder for a new one.

The new export is written to UNFINISHED, a folder inside the export's folder. One rename makes it
FINISHED: from then on `current` names it, whole, until its files are also at their places and
FINISHED is renamed and removed. So a process that is killed at any time leaves the earlier export
or the new one for all that reads through `current`; the next export in the folder completes what
was interrupted. Other readers, such as a server, may miss a file until then.

Object stores have no renames: there each file is replaced by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from typing import Iterator, Sequence

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import FolderInUseError
from model_fn.serving.saved_model import copy_folder

UNFINISHED = "unfinished_export"
FINISHED = "finished_export"


@contextlib.contextmanager
def locked(output_dir: str) -> Iterator[None]:
    """Context manager: no other process exports to a folder, which is created if it is missing.

    Two exports would delete each other's unfinished files. The lock is the kernel's on the folder
    itself, so nothing is left of it; object stores and some network file systems have none.
    """
    if files.is_remote(output_dir):
        yield
        return
    with files.removed_if_empty(output_dir):
        os.makedirs(output_dir, exist_ok=True)
        handle = os.open(output_dir, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                _lock(handle, output_dir)
            yield
        finally:
            os.close(handle)


def _lock(handle: int, output_dir: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError(
            f"another process exports to {output_dir}: wait until it ends, or give another folder"
        ) from None


@contextlib.contextmanager
def unfinished(output_dir: str) -> Iterator[str]:
    """Context manager: an empty local folder for a new export, which is removed at the end."""
    if files.is_remote(output_dir):
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    folder = os.path.join(output_dir, UNFINISHED)
    with files.removed_if_empty(output_dir):
        shutil.rmtree(folder, ignore_errors=True)  # left by an export that was killed
        os.makedirs(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def exchange(folder: str, output_dir: str, names: Sequence[str]) -> None:
    """Moves the files of a folder of `unfinished` to an export, and removes others of `names`.

    Args:
        names: Files and folders that an export may contain; others stay.
    """
    if files.is_remote(output_dir):
        _remove(output_dir, names)
        move(folder, output_dir, os.listdir(folder))
        return
    # The commit: before it readers see the earlier export, after it the new one.
    os.rename(folder, os.path.join(output_dir, FINISHED))
    complete(output_dir, names)


def move(folder: str, output_dir: str, names: Sequence[str]) -> None:
    """Moves files and folders; they replace what has their names in the target."""
    for name in names:
        source, target = os.path.join(folder, name), os.path.join(output_dir, name)
        _remove(output_dir, [name])
        if not files.is_remote(output_dir):
            os.rename(source, target)
        elif os.path.isdir(source):
            copy_folder(source, target)
        else:
            tf.io.gfile.copy(source, target)


def complete(output_dir: str, names: Sequence[str]) -> None:
    """Completes an exchange that was interrupted, if there is one; arguments as of `exchange`."""
    finished = os.path.join(output_dir, FINISHED)
    if files.is_remote(output_dir) or not os.path.isdir(finished):
        return
    _remove(output_dir, names)
    for name in os.listdir(finished):
        source, target = os.path.join(finished, name), os.path.join(output_dir, name)
        _remove(output_dir, [name])
        if os.path.isdir(source):
            shutil.copytree(source, target, copy_function=_link)
        else:
            _link(source, target)
    unfinished_folder = os.path.join(output_dir, UNFINISHED)
    shutil.rmtree(unfinished_folder, ignore_errors=True)
    # Renamed first: what is left of a removal that is interrupted must not be taken for an export.
    os.rename(finished, unfinished_folder)
    shutil.rmtree(unfinished_folder)


def current(path: str) -> str:
    """The present place of an export's folder, or of a file or folder in it."""
    if files.is_remote(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    for finished in (os.path.join(path, FINISHED), os.path.join(folder, FINISHED, name)):
        if os.path.exists(finished):
            return finished
    return path


def _link(source: str, target: str) -> None:
    """A hard link, which needs neither time nor space, or a copy if the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _remove(folder: str, names: Sequence[str]) -> None:
    for path in (os.path.join(folder, name) for name in names):
        if tf.io.gfile.exists(path):
            (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)
