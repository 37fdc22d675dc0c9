"""Stops by signal: after SIGINT or SIGTERM the step is finished and a checkpoint saved.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional

from estimator_det.config import printing

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended the run; no `Exception`, so that nothing takes it for a failure.

    Attributes:
        signal_number: SIGINT or SIGTERM.
    """

    def __init__(self, signal_number: int, text: str = "") -> None:
        super().__init__(text or f"stopped by {signal_name(signal_number)}")
        self.signal_number = signal_number


def signal_name(number: int) -> str:
    """SIGTERM for 15."""
    return signal.Signals(number).name


def exit_code(number: int) -> int:
    """What shells give a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


class StopSignals:
    """Turns SIGINT and SIGTERM into a stop, while its context is entered.

    The first signal raises `Stopped` where the main thread is, or, inside `deferred()`, is only
    noted in `requested`. The second one ends the process at once, even while TensorFlow computes.
    A signal that is ignored, as SIGINT is in a job in the background, stays so. In other threads
    than the main one, where Python has no signals, the context does nothing.

    Attributes:
        arrived: As `requested`, also while the main thread is inside TensorFlow; for other threads.
    """

    def __init__(self) -> None:
        self._received: Optional[int] = None
        self._passed_on: Optional[int] = None
        self.arrived: Optional[int] = None
        self._raised: Optional[int] = None
        self._deferring = False
        self._old_handlers: Dict[int, Any] = {}
        self._watcher: Optional[_Watcher] = None

    @property
    def requested(self) -> Optional[int]:
        """The signal that has arrived, here or at another process of the run."""
        return self._passed_on if self._received is None else self._received

    def pass_on(self, number: int) -> None:
        """Stops as after a signal, because another process of the run got one.

        The first signal that arrives here afterwards does not end the process at once: where all
        processes get one, that is the same stop.
        """
        self._passed_on = number

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._watcher = _Watcher.start(self._arrived)
            self._old_handlers = _install(self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
            if isinstance(handler, _Terminator) and self._received is not None:
                handler.requested = self._received  # The next one is the second.
        self._old_handlers = {}
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """Within, a signal raises `Stopped` even after `defer()`: nothing is at stake here.

        Raises:
            Stopped: at once if a signal arrived before.
        """
        was, self._deferring = self._deferring, False
        try:
            self.raise_if_requested()
            with self.unfailing():
                yield
        finally:
            self._deferring, self._raised = was, None

    @contextlib.contextmanager
    def unfailing(self) -> Iterator[None]:
        """Within, a `Stopped` that was raised for a signal is not lost.

        Raises:
            Stopped: at the end, if another error or none came of one.
        """
        with _unfailing(lambda: self._raised):
            yield

    def defer(self, deferring: bool = True) -> None:
        """From now on signals are noted only, until `defer(False)`."""
        self._deferring = deferring

    def raise_if_requested(self, text: str = "") -> None:
        """Raises `Stopped` if a signal has arrived."""
        if self.requested is not None:
            raise Stopped(self.requested, text)

    def _arrived(self, number: int, count: int) -> None:
        """In the watching thread: confirms the first signal at once, exits on the second."""
        self.arrived = number
        if count > 1:
            _end_at_once(number)
        if self._deferring:
            printing.report_at_once(
                f"{signal_name(number)}: finishing this step and saving a checkpoint; "
                "once more stops at once",
                "WARNING",
            )

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        if self._received is not None:
            _end_at_once(number)
        self._received = number
        if not self._deferring:
            self._raised = number
            raise Stopped(number)


def _install(handle: Any) -> Dict[int, Any]:
    """Sets the handler of the signals that are not ignored; returns those before."""
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handle) for number in heeded}


@contextlib.contextmanager
def deadly() -> Iterator[None]:
    """Context manager: SIGINT and SIGTERM end the process, even if what it writes is not read."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old_handlers = _install(signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """At the end, signals have Python's handlers again, where TensorFlow has replaced them in C++.

    Its coordination of workers does so for SIGTERM.
    """
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler is not None:
                    signal.signal(number, handler)


def _end_at_once(number: int) -> NoReturn:
    printing.report_at_once(f"{signal_name(number)} again: stopped at once", "WARNING")
    os._exit(exit_code(number))


class _Watcher:
    """A thread that receives signals while the main thread is inside TensorFlow.

    Python runs handlers only between two of its own instructions; the wake-up pipe is written to
    when the signal arrives.
    """

    def __init__(self, arrived: Any, read_end: int, write_end: int) -> None:
        self._arrived = arrived
        self._read_end, self._write_end = read_end, write_end
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, arrived: Any) -> Optional[_Watcher]:
        """None where an event loop owns the wake-up pipe already, as in a notebook."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        taken = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if taken == -1:
            return cls(arrived, read_end, write_end)
        signal.set_wakeup_fd(taken)
        os.close(read_end)
        os.close(write_end)
        return None

    def stop(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._write_end)
        self._thread.join()
        os.close(self._read_end)

    def _watch(self) -> None:
        count = 0
        while True:
            byte = os.read(self._read_end, 1)
            if not byte:
                return
            if byte[0] in SIGNALS:
                count += 1
                self._arrived(byte[0], count)


@contextlib.contextmanager
def _unfailing(raised: Callable[[], Optional[int]]) -> Iterator[None]:
    """Raises the `Stopped` that was lost on its way.

    TensorFlow's type checks in C++ read an exception of the check as a match and continue, so that
    another error follows elsewhere, or a wrong result. Python itself continues after one in a
    `__del__`, with a traceback on the terminal, which is suppressed here; so is that of the
    `__del__` of an object that the signal left half made.

    Args:
        raised: Gives the signal for which a handler has raised `Stopped`.
    """
    old_hook = sys.unraisablehook

    def hook(arguments: Any) -> None:
        if raised() is None:
            old_hook(arguments)

    sys.unraisablehook = hook
    try:
        yield
    except Stopped as stop:
        # Half-made objects go now, while the hook is there; `stop` would keep them alive.
        traceback.clear_frames(stop.__traceback__)
        raise
    except Exception as error:
        number = raised()
        if number is None:
            raise
        raise Stopped(number) from error
    finally:
        sys.unraisablehook = old_hook
    number = raised()
    if number is not None:
        raise Stopped(number)


class _Terminator:
    """The signal handler of `terminable`."""

    def __init__(self) -> None:
        self.requested: Optional[int] = None  # the signal that has arrived, here or further inside
        self.raised: Optional[int] = None

    def __call__(self, number: int, frame: Any) -> None:
        del frame
        if self.requested is not None:
            _end_at_once(number)
        self.requested = self.raised = number
        raise Stopped(number)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM and SIGINT raise `Stopped`, and a second one ends the process; for programs.

    Does nothing in other threads than the main one; a signal that is ignored stays so.

    Raises:
        Stopped: also at the end, if another error or none came of one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Terminator()
    old_handlers = _install(handler)
    try:
        with _unfailing(lambda: handler.raised):
            yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)
