r"""JSON documents and files of JSON lines that survive crashes and any text.

A process that is killed while it writes leaves a line without its end: `append` begins on a new
line, and `read` skips the incomplete one with a warning. Characters that a terminal or an editor
does not show as themselves are escaped (\u202e); parsers read the same text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from typing import Any, Dict, List, Optional, Sequence

from estimator_det.files.atomic import is_remote
from estimator_det.files.text import shortened

LONGEST_STRING = 5_000  # characters; the longest path of a file has 4096
_LAST_BYTES = 4096  # `read_last` reads this many

_LOG = logging.getLogger(__name__)


def dumps(value: Any, *, shortens: bool = True, **options: Any) -> str:
    """JSON of `value`.

    Args:
        shortens: Strings of more than `LONGEST_STRING` characters lose their middle.
    """
    value = _with_short_strings(value) if shortens else value
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.isprintable():
        return text
    # Outside of strings, JSON has no character of this kind but the newlines of an indented text.
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def _with_short_strings(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, LONGEST_STRING)
    if isinstance(value, dict):
        return {key: _with_short_strings(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_short_strings(entry) for entry in value]
    return value


def append(path: str, entry: Dict[str, Any]) -> None:
    """Appends `entry` as a line, on a new line even where the file ends within one.

    Missing folders are made. Numbers that are NaN or infinite are a ValueError.
    """
    line = dumps(entry, allow_nan=False).encode() + b"\n"
    if is_remote(path):
        _append_remote(path, line)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        with open(path, "ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
    except OSError as error:  # the error of a write does not name the file
        raise OSError(error.errno, error.strerror, path) from error


def _append_remote(path: str, line: bytes) -> None:
    from estimator_det.compat import tf

    tf.io.gfile.makedirs(path.rpartition("/")[0])
    size = tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else 0
    if size:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
    with tf.io.gfile.GFile(path, "ab") as file:
        file.write(line)


def read(path: str, keys: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """The entries of a file in order; an empty list if there is no such file.

    A line that is not a JSON object with all of `keys` is skipped with a warning that names it.
    """
    entries = []
    incomplete = []
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:  # cut off, also within a character
            entry = None
        if isinstance(entry, dict) and all(key in entry for key in keys):
            entries.append(entry)
        else:
            incomplete.append(number)
    if incomplete:
        _warn_once(path, len(incomplete), incomplete[0])
    return entries


def read_last(path: str) -> Dict[str, Any]:
    """The entry on the last line, without reading the lines before; {} if it is not whole."""
    content = _content(path, last_bytes=_LAST_BYTES)
    try:
        entry = json.loads(content[content[:-1].rfind(b"\n") + 1 :])
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _content(path: str, last_bytes: Optional[int] = None) -> bytes:
    """Content of a file, or its end alone; nothing if there is no such file."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as local:
            return _read_end(local, last_bytes)
        return b""
    from estimator_det.compat import tf

    with contextlib.suppress(tf.errors.NotFoundError), tf.io.gfile.GFile(path, "rb") as remote:
        return _read_end(remote, last_bytes)
    return b""


def _read_end(file: Any, last_bytes: Optional[int]) -> bytes:
    if last_bytes is not None:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - last_bytes, 0))
    return bytes(file.read())


@functools.cache  # files are read again and again, as after each evaluation
def _warn_once(path: str, count: int, first: int) -> None:
    _LOG.warning(
        "%s, line %d%s: incomplete, as a crash leaves it; skipped",
        path,
        first,
        f" and {count - 1} more" if count > 1 else "",
    )
