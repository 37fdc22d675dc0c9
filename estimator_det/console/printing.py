"""Text for terminals, logs and error messages, whatever characters it contains.

Records, file names, label maps and configurations may contain control characters, marks that
reverse the direction of writing, and values of any length. `report` and `LogFormatter` escape and
cut what they print; whoever puts such a value into a message shortens it with `plain` or `quoted`,
so that the rest of the message stays readable. `json_lines` does the same for JSON.

After `use_json` each of them is a line of JSON with the fields of Google's Cloud Logging, severity,
message and time: https://cloud.google.com/logging/docs/structured-logging.
"""

from __future__ import annotations

import _thread
import contextlib
import datetime
import fcntl
import json
import logging
import os
import sys
from typing import Any, ContextManager, Iterable, List, Optional, TextIO

from estimator_det.files.text import LONGEST_VALUE, shortened

LONGEST_LINE = 4_000  # characters of one printed line
_LONGEST_WAIT_SECS = 1.0
_STDERR = 2
_FOLDERS_SHOWN = 5
_CLEAR_LINE = b"\r\x1b[K"  # removes the line of a progress bar
_LAYOUT = "\n\t"  # characters that lay out a text of several lines
_SEVERITIES = {"error": "ERROR", "warning": "WARNING"}  # severities of a `Problem`


class _Format:
    """How this process prints; programs set it."""

    is_json = False


def use_json(is_json: bool = True) -> None:
    """Prints lines of JSON from now on, or text again; for programs."""
    _Format.is_json = is_json


def is_json() -> bool:
    """Whether lines of JSON are printed."""
    return _Format.is_json


def entry(message: str, severity: str = "INFO") -> str:
    """An escaped message, of one or more lines, as this process prints it: as JSON or as it is."""
    if not _Format.is_json:
        return message
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps({"severity": severity, "message": message, "time": now})


def escaped(text: str, keep: str = "") -> str:
    r"""`text` with escapes such as \x1b and \u202e for all that does not show as itself.

    These are control, format and unassigned characters, separators of lines, and bytes of file
    names that are no text. The characters of `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def cut(text: str, most: int) -> str:
    """`text` without its end if it has more than `most` characters, for a column of a table."""
    return text if len(text) <= most else text[: most - 1] + "…"


def plain(value: Any, most: int = LONGEST_VALUE) -> str:
    """A value from outside, for one line of a message: escaped and shortened."""
    return escaped(shortened(str(value), most))


def quoted(value: Any) -> str:
    """Like `plain`, in quotes."""
    return repr(shortened(str(value)))


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 file`, `2 boxes`, `2 classes`; irregular plurals must be given."""
    plural = plural or noun + ("es" if noun.endswith(("s", "x")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def listed(values: Iterable[Any], most: int, total: Optional[int] = None) -> str:
    """`a, b and 3 more`: the first values; `total` replaces the number of `values`."""
    texts = list(map(str, values))
    rest = (len(texts) if total is None else total) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def holding(folders: List[str]) -> str:
    """Says what a folder holds in place of what is looked for, for an error; else empty."""
    return f"it holds {listed(folders, _FOLDERS_SHOWN)}" if folders else ""


def printable(text: str) -> str:
    """A text of several lines, each of them escaped and cut to `LONGEST_LINE`."""
    if len(text) > LONGEST_LINE:
        text = "\n".join(shortened(line, LONGEST_LINE) for line in text.split("\n"))
    return escaped(text, keep=_LAYOUT)


def drawn_bars() -> List[Any]:
    """The progress bars on the terminal, of tqdm, which the first of them imports."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return list(getattr(tqdm, "_instances", ()))


def above_bars() -> ContextManager[Any]:
    """Context manager: progress bars are cleared, and drawn again below what is printed."""
    bars = drawn_bars()
    return type(bars[0]).external_write_mode(sys.stderr) if bars else contextlib.nullcontext()


def report(
    text: Any, stream: Optional[TextIO] = None, *, whole: bool = False, severity: str = ""
) -> None:
    """Prints one or more lines, escaped and flushed at once; on standard output by default.

    In JSON, the default severity is the severity of a `Problem`, and INFO for other texts. Lines
    are cut to `LONGEST_LINE` unless `whole` is set, as for a document. Nothing is printed once the
    reader has closed the pipe, as `head` does after a few lines, or if standard error is full. The
    program continues, for its files and its exit code.
    """
    severity = severity or _SEVERITIES.get(getattr(text, "severity", ""), "INFO")
    text = str(text)
    shown = escaped(text, keep=_LAYOUT) if whole else printable(text)
    stream = stream or sys.stdout
    try:
        with above_bars():
            print(entry(shown, severity), file=stream, flush=True)
    except OSError as error:
        if stream is sys.stderr:  # It has no buffer.
            return
        if not isinstance(error, BrokenPipeError):
            raise
        # "Note on SIGPIPE" in the documentation of Python advises this: the interpreter flushes
        # the rest of the buffer when it exits, and needs a descriptor that takes it.
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


def report_at_once(text: str, severity: str) -> None:
    """Prints a line on standard error as it is, from any thread or handler of a signal.

    Goes past Python's buffers, which another thread may hold. Returns after `_LONGEST_WAIT_SECS`
    where nobody reads the line, and raises nothing where nobody can.
    """
    line = f"{entry(text, severity)}\n".encode()
    written = _thread.allocate_lock()
    written.acquire()

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(_STDERR, _CLEAR_LINE + line if os.isatty(_STDERR) else line)
        written.release()

    # `threading` takes locks that an interrupted main thread may hold.
    with contextlib.suppress(RuntimeError):  # no more threads
        _thread.start_new_thread(write, ())
        written.acquire(timeout=_LONGEST_WAIT_SECS)


def open_closed_streams() -> None:
    """Opens the null device in place of standard streams that the caller has closed.

    As by `2>&-`: Python has no stream there, or one of a file that another program has opened to
    read, so that every message would be an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            can_write = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        except OSError:  # closed
            can_write = False
        if getattr(sys, name) is not None and (can_write or not number):
            continue
        nothing = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if not can_write and nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 (kept open)
            setattr(sys, name, stream)


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # before Python 3.11 it has none
    """Writes log lines to standard error, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        with above_bars():
            super().emit(record)


class LogFormatter(logging.Formatter):
    """Formats log lines as their format says, escaped and cut; or as JSON, after `use_json`."""

    def format(self, record: logging.LogRecord) -> str:
        return entry(printable(super().format(record)), record.levelname)
