"""Stops of programs: `Stop`, which says that a run is to end, and the signals that request it.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional

from estimator_det.console import printing


class Stop:
    """Request to end a run, by a signal, a hook, another task or the end of training."""

    def __init__(self) -> None:
        # Without a lock: a signal handler interrupts the thread that would hold it.
        self._requests: List[Optional[BaseException]] = []

    @property
    def is_requested(self) -> bool:
        return bool(self._requests)

    @property
    def cause(self) -> Optional[BaseException]:
        """First error among the requests; None for a plain end, by a hook for example."""
        return next((request for request in self._requests if request is not None), None)

    def request(self, cause: Optional[BaseException] = None) -> None:
        """Ends the run after the current step, and then by the error, if there is one."""
        self._requests.append(cause)

    def raise_if_requested(self) -> None:
        if self.cause is not None:
            raise self.cause


SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A signal within this time is the first one again: `timeout` signals a process and then its group.
SAME_SECS = 0.3
_TENSORFLOW = ("tensorflow", "tensorflow_estimator", "tf_slim", "tf_keras", "keras")


class Stopped(KeyboardInterrupt):
    """A signal ended the run; no `Exception`, so that nothing takes it for a failure."""

    def __init__(self, signal_number: int, text: str = "") -> None:
        super().__init__(text or f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


def exit_code(number: int) -> int:
    """Exit code that shells show after a signal: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


class StopSignals:
    """Context manager: SIGINT and SIGTERM request a stop.

    The first signal also raises `Stopped` in the main thread, unless signals are deferred. The
    second one, SAME_SECS or more later, ends the process at once, even while TensorFlow computes;
    a signal that a nested context caught counts as the first. A signal that is ignored, as SIGINT
    is in a job in the background, stays ignored. Outside of the main thread the context does
    nothing: Python has no signals there.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._first_secs: Optional[float] = None  # time of the first signal
        self._raised: Optional[int] = None
        self._deferring = False
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._exits.enter_context(_watched(self._arrived))
            self._exits.callback(_reinstall, _install(self._handle))
            self._exits.enter_context(self._reraising_lost_stop())
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    def defer(self) -> None:
        """From now on signals raise nothing."""
        self._deferring = True

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """Context manager: a signal raises `Stopped` even after `defer()`.

        It is for work that may be lost, such as an evaluation.
        """
        was, self._deferring = self._deferring, False
        try:
            self._stop.raise_if_requested()
            with self._reraising_lost_stop():
                yield
        finally:
            self._deferring, self._raised = was, None

    @contextlib.contextmanager
    def _reraising_lost_stop(self) -> Iterator[None]:
        """Context manager: raises a `Stopped` that was lost on its way.

        TensorFlow's type checks in C++ read an exception as a match and continue, so that another
        error of TensorFlow follows, or a wrong result. An error of other code is raised unchanged.
        Python itself continues after an exception in a `__del__`, and prints a traceback. This
        traceback is suppressed, and the traceback of an object that the signal left half-made.
        """
        old_hook = sys.unraisablehook

        def hook(arguments: Any) -> None:
            if self._raised is None:
                old_hook(arguments)

        sys.unraisablehook = hook
        try:
            yield
        except Stopped as stopped:
            # Half-made objects go now, while the hook is there; the error would keep them alive.
            traceback.clear_frames(stopped.__traceback__)
            raise
        except Exception as error:
            if self._raised is None or not _is_from_tensorflow(error):
                raise
            raise Stopped(self._raised) from error
        finally:
            sys.unraisablehook = old_hook
        if self._raised is not None:
            raise Stopped(self._raised)

    def _arrived(self, number: int) -> None:
        """Confirms the first signal and exits on the second, in the watching thread."""
        name, now = signal.Signals(number).name, time.monotonic()
        if self._first_secs is not None:
            if now < self._first_secs + SAME_SECS:
                return
            end_at_once(f"{name} again: stopped at once", "WARNING", exit_code(number))
        self._first_secs = now
        self._stop.request(Stopped(number))
        if self._deferring:
            printing.report_at_once(
                f"{name}: finishing this step and saving a checkpoint; once more stops at once",
                "WARNING",
            )

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        self._stop.request(Stopped(number))
        if not self._deferring and self._raised is None:
            self._raised = number
            raise Stopped(number)


def _is_from_tensorflow(error: Exception) -> bool:
    """True if the innermost frame of an error is one of TensorFlow's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] in _TENSORFLOW


def _install(handler: Any) -> Dict[int, Any]:
    """Sets the handler of the signals that are not ignored; returns the old handlers."""
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def _reinstall(handlers: Dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def default_handlers() -> Iterator[None]:
    """Context manager: SIGINT and SIGTERM end the process, even if nobody reads its output."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old_handlers = _install(signal.SIG_DFL)
    try:
        yield
    finally:
        _reinstall(old_handlers)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Context manager: reinstalls Python's handlers after TensorFlow has replaced them in C++.

    TensorFlow's coordination service does so for SIGTERM.
    """
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            # None stands for a handler that was installed in C.
            _reinstall({number: each for number, each in handlers.items() if each is not None})


def end_at_once(text: str, severity: str, code: int) -> NoReturn:
    """Ends the process, even if its main thread waits inside TensorFlow or stderr is full."""
    printing.report_at_once(text, severity)
    os._exit(code)


@contextlib.contextmanager
def _watched(arrived: Callable[[int], None]) -> Iterator[None]:
    """Context manager: a thread receives signals while the main thread is inside TensorFlow.

    Python runs handlers only between two of its own instructions; the wake-up pipe is written to
    when the signal arrives. The pipe that was installed before, by an outer context or the event
    loop of a notebook, gets each byte as well.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    outer = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def watch() -> None:
        while byte := os.read(read_end, 1):
            if byte[0] in SIGNALS:
                arrived(byte[0])
            if outer != -1:
                with contextlib.suppress(OSError):
                    os.write(outer, byte)

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        os.close(write_end)
        thread.join()
        os.close(read_end)
