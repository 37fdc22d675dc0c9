"""Writes a file so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Iterator, Union

AnyPath = Union[str, "os.PathLike[str]"]


def is_remote(path: str) -> bool:
    """Whether a path names a file system of its own, such as gs://bucket/file."""
    return "://" in path


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """Context manager: the path of a new local file, which replaces `path` if there is no error."""
    # Two processes may write the same file.
    unfinished = f"{path}.tmp-{os.getpid()}"
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        pathlib.Path(unfinished).unlink(missing_ok=True)


def write(path: AnyPath, content: Union[str, bytes]) -> None:
    """Writes text as UTF-8, or bytes; missing folders are created.

    Raises:
        OSError: if the file cannot be written, or TensorFlow's error for a remote one.
    """
    path = os.fspath(path)
    content = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        from estimator_det.compat import tf

        unfinished = f"{path}.tmp-{os.getpid()}"
        tf.io.gfile.makedirs(path.rpartition("/")[0])
        with tf.io.gfile.GFile(unfinished, "wb") as remote:
            remote.write(content)
        tf.io.gfile.rename(unfinished, path, overwrite=True)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        with replaced(path) as unfinished:
            pathlib.Path(unfinished).write_bytes(content)
    except OSError as error:
        if error.errno is None:
            raise
        # The error of a write names no file.
        raise OSError(error.errno, error.strerror, path) from error
