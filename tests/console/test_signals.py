from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any, Iterator, List, Optional

import pytest
import tensorflow as tf

from estimator_det.console import signals as stopping
from estimator_det.console.signals import Stop, Stopped, StopSignals
from tests import sinks
from tests.processes import run_python

SECOND_SIGNAL = """
import contextlib, os, signal, sys, threading, time
from estimator_det.console import signals
from estimator_det.console.signals import Stop
from tests import sinks

number, place = int(sys.argv[1]), sys.argv[2]
if len(sys.argv) > 3:
    sinks.use(sys.argv[3])
signals.SAME_SECS = 0.0
for each in signals.SIGNALS:
    signal.signal(each, signal.default_int_handler)

def send():
    with contextlib.suppress(signals.Stopped):  # As TensorFlow does at times.
        os.kill(os.getpid(), number)
        time.sleep(0.01)

if place == "notebook":
    signal.set_wakeup_fd(os.open(os.devnull, os.O_WRONLY | os.O_NONBLOCK))

def send_while_computing():  # The main thread is outside of Python, and runs no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
    os.read(os.pipe()[0], 1)

is_program = place in ("program", "computing program", "after a run")
with signals.StopSignals(Stop()) if is_program else contextlib.nullcontext():
    if place in ("program", "computing program"):
        send()
        if place == "computing program":
            send_while_computing()
    else:
        with contextlib.suppress(signals.Stopped), signals.StopSignals(Stop()) as run:
            if place == "step":
                run.defer()
            send()
            if place == "computing":
                send_while_computing()
            if place != "after a run":
                send()
                time.sleep(5)
    send()
    time.sleep(5)
print("survived")
"""


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Signal handlers as in a shell's foreground, wherever the tests run."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)


def _signal_number(stop: Stop) -> Optional[int]:
    return stop.cause.signal_number if isinstance(stop.cause, Stopped) else None


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_raises_unless_deferred(number):
    before = [signal.getsignal(each) for each in stopping.SIGNALS]
    stop = Stop()
    with pytest.raises(Stopped) as caught, StopSignals(stop):
        _kill(number)
    assert caught.value.signal_number == number == _signal_number(stop)
    assert str(caught.value) == f"stopped by {signal.Signals(number).name}"
    assert [signal.getsignal(each) for each in stopping.SIGNALS] == before


def test_deferred_is_noted_and_told(capfd, monkeypatch):
    monkeypatch.setattr(stopping, "SAME_SECS", 60.0)
    stop = Stop()
    with StopSignals(stop) as signals:
        signals.defer()
        stop.raise_if_requested()
        for _ in range(2):  # by `timeout`, for example
            _kill(signal.SIGTERM)
        assert _signal_number(stop) == signal.SIGTERM
        with pytest.raises(Stopped), signals.immediate():
            raise AssertionError("not reached")
        with pytest.raises(Stopped):
            stop.raise_if_requested()
    assert capfd.readouterr().err.count("SIGTERM: finishing this step and saving") == 1


def test_a_stop_by_another_process_is_not_the_first_signal_here():
    stop = Stop()
    with StopSignals(stop) as signals:
        signals.defer()
        stop.request(Stopped(signal.SIGTERM))
        _kill(signal.SIGINT)  # would end the process if it were the second
        assert _signal_number(stop) == signal.SIGTERM


def test_a_signal_after_the_stop_of_a_hook_is_the_cause():
    stop = Stop()
    with StopSignals(stop) as signals:
        signals.defer()
        stop.request()
        stop.raise_if_requested()
        _kill(signal.SIGINT)
    assert _signal_number(stop) == signal.SIGINT


def test_handlers_that_are_replaced_past_python():
    install = ctypes.CDLL(None).signal
    install.restype = None
    install.argtypes = [ctypes.c_int, ctypes.c_void_p]
    ignore = int(signal.SIG_IGN)
    stop = Stop()
    with StopSignals(stop) as signals:
        signals.defer()
        with stopping.handlers_kept():
            install(signal.SIGTERM, ignore)
            _kill(signal.SIGTERM)
            assert not stop.is_requested
        _kill(signal.SIGTERM)
        assert _signal_number(stop) == signal.SIGTERM


def test_other_threads_have_no_signals():
    handlers: List[object] = []

    def run() -> None:
        with StopSignals(Stop()):
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]


class _Interrupting:
    """A signal comes while its type is checked, inside of C++, which may ask more than once."""

    def __init__(self) -> None:
        self._is_asked = False

    @property
    def __class__(self) -> Any:
        if not self._is_asked:
            self._is_asked = True
            _kill(signal.SIGTERM)
        return object

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise AttributeError


_LOST = (AttributeError, TypeError)  # what TensorFlow raises in place of the stop: 2.15, later


def test_no_stop_is_lost():
    def lost() -> None:
        with pytest.raises(_LOST):
            tf.nest.flatten(_Interrupting())

    with StopSignals(Stop()) as signals:
        signals.defer()
        with pytest.raises(Stopped) as caught, signals.immediate():
            tf.nest.flatten(_Interrupting())
        assert isinstance(caught.value.__cause__, _LOST)
    with pytest.raises(Stopped), StopSignals(Stop()):
        tf.nest.flatten(_Interrupting())
    with pytest.raises(Stopped), StopSignals(Stop()):
        lost()


def test_an_error_after_a_noted_signal_is_an_error():
    with pytest.raises(OSError), StopSignals(Stop()) as signals:
        signals.defer()
        _kill(signal.SIGTERM)
        raise OSError
    with pytest.raises(OSError), StopSignals(Stop()) as signals:
        signals.defer()
        with pytest.raises(Stopped), signals.immediate():
            _kill(signal.SIGTERM)
        raise OSError  # While the last checkpoint is saved.
    with pytest.raises(OSError), StopSignals(Stop()):
        raise OSError


@pytest.mark.parametrize("is_cleanup", [False, True])
def test_a_defect_after_a_signal_is_no_stop(is_cleanup):
    with pytest.raises(KeyError, match="defect"), StopSignals(Stop()):
        try:
            _kill(signal.SIGTERM)
        except Stopped:
            if is_cleanup:
                raise KeyError("defect") from None
        raise KeyError("defect")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    "place",
    ["building", "step", "computing", "notebook", "program", "computing program", "after a run"],
)
def test_the_second_signal_ends_the_process(number, place):
    ended = run_python("-c", SECOND_SIGNAL, str(int(number)), place, timeout=60)
    assert ended.returncode == 128 + number, ended.stderr
    assert f"{signal.Signals(number).name} again: stopped at once" in ended.stderr
    assert "survived" not in ended.stdout and "Traceback" not in ended.stderr


@pytest.mark.parametrize("sink", sinks.SINKS)
@pytest.mark.parametrize("place", ["step", "computing program"])
def test_the_second_signal_ends_a_process_that_cannot_write(place, sink):
    ended = run_python("-c", SECOND_SIGNAL, str(int(signal.SIGINT)), place, sink, timeout=60)
    assert ended.returncode == 130


STOPPED_PROGRAM = """
import os, signal, sys, threading
from estimator_det.programs import console
from tests import sinks

def main():
    sinks.use(sys.argv[1])
    for seconds in (1.0, 0.1):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True  # A program that ends does not wait for the second signal.
        timer.start()
    os.read(os.pipe()[0], 1)

signal.signal(signal.SIGTERM, signal.default_int_handler)  # as of a caller
sys.exit(console.run(main))
"""


@pytest.mark.parametrize("sink", sinks.SINKS)
def test_a_stopped_program_ends_though_it_cannot_say_so(sink):
    ended = run_python("-c", STOPPED_PROGRAM, sink, timeout=60)
    # Where the last line waits for its reader, the second signal ends the process.
    assert ended.returncode == (-signal.SIGTERM if sink == "full pipe" else 143)


def test_an_ignored_signal_stays_ignored():
    """As of a job in the background, which the shell starts so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = Stop()
    with StopSignals(stop), StopSignals(stop):
        _kill(signal.SIGINT)
    assert not stop.is_requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
