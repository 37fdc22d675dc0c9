"""Copies that are interrupted, delayed or corrupted: continued, repeated or refused."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Iterator, List

import pytest
from google.auth.exceptions import RefreshError, TransportError

from estimator_det.errors import StorageError
from estimator_det.programs.cloud import connection, storage
from estimator_det.programs.cloud.connection import Connection, Retry, connect, storage_error
from estimator_det.programs.cloud.paths import CloudPath, parse
from tests.cloud.conftest import MOST_AT_ONCE as QUARTER
from tests.cloud.emulator import corrupt, cut, half, hang, status
from tests.cloud.test_storage import fetch, names_in, send
from tests.conftest import TESTS


def list_files(path: str) -> List[Any]:
    return connect().list_blobs(parse(path))


def test_failed_upload_starts_again_with_the_next_command(
    emulator, tmp_path, monkeypatch, large, small
):
    monkeypatch.setattr(connection, "ATTEMPTS", 3)
    emulator.fail("PUT", "upload_id", cut, times=99, after=2)
    with pytest.raises(
        StorageError,
        match=r"large\.record: write failed 3 times in a row.* files that are complete are skipped",
    ):
        send(tmp_path)
    emulator.faults.clear()
    done = send(tmp_path)
    assert emulator.content("large.record") == large.read_bytes()
    assert done.files + done.same == 2


def test_interrupted_upload_continues(emulator, caplog, large):
    emulator.fail("PUT", "upload_id", cut, after=2)
    send(large)
    assert emulator.content("large.record") == large.read_bytes()
    assert emulator.count("POST") == 1 and emulator.count("PUT") == 5  # one chunk twice
    assert "large.record: write failed: the connection failed" in caplog.text
    assert "; attempt 2 of 8 in " in caplog.text


def test_failed_download_leaves_nothing_and_starts_again(emulator, tmp_path, monkeypatch, large):
    monkeypatch.setattr(connection, "ATTEMPTS", 2)
    send(large)
    local = tmp_path / "local"
    emulator.fail("GET", "alt=media", half)
    emulator.fail("GET", "alt=media", status(503), times=99)
    with pytest.raises(StorageError, match=r"read failed 2 times in a row.* HTTP 503"):
        fetch(local)
    assert not names_in(local)
    emulator.faults.clear()
    fetch(local)
    assert (local / large.name).read_bytes() == large.read_bytes()
    assert names_in(local) == [large.name]


def test_interrupted_download_continues(emulator, tmp_path, waits, monkeypatch, large):
    monkeypatch.setattr(connection, "ATTEMPTS", 2)
    send(large)
    ranges: List[str] = []
    # Each answer brings half of the rest: progress, so that failures do not add up.
    emulator.fail("GET", "alt=media", half, times=5)
    emulator.fail("GET", "alt=media", lambda handler: ranges.append(handler.headers["Range"]))
    fetch(tmp_path / "l")
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()
    assert len(waits) == 5
    first = int(ranges[0][len("bytes=") : ranges[0].index("-")])
    assert first > large.stat().st_size * 0.9


@pytest.mark.parametrize("fault", [status(503), status(429), status(500), cut])
def test_failures_that_pass_are_retried_with_growing_delays(
    emulator, tmp_path, waits, fault, large, small
):
    emulator.fail("POST", "uploadType=multipart", fault, times=3)
    send(small)
    assert len(waits) == 3
    for wait, longest in zip(waits, (1.0, 2.0, 4.0)):
        assert longest / 2 <= wait <= longest
    emulator.fail("PUT", "upload_id", fault, times=2, after=1)
    send(large)
    emulator.fail("GET", "/o?", fault)
    emulator.fail("GET", "alt=media", fault)
    done = fetch(tmp_path / "l")
    assert done.files == 2 and len(waits) == 7
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()


def test_delays_have_a_limit(emulator, waits, monkeypatch):
    monkeypatch.setattr(connection, "ATTEMPTS", 9)
    emulator.fail("GET", "/o?", status(503), times=99)
    with pytest.raises(StorageError, match="9 times in a row, at last with: HTTP 503"):
        list_files("gs://data")
    assert len(waits) == 8 and 16.0 <= max(waits) <= 32.0


def test_timeouts_are_retried(emulator, tmp_path, monkeypatch, caplog, large):
    monkeypatch.setattr(connection, "TIMEOUT_SECS", 0.5)
    emulator.fail("PUT", "upload_id", hang, after=1)
    storage.upload([str(large)], "gs://data")
    emulator.fail("GET", "alt=media", hang)
    storage.download(["gs://data"], str(tmp_path / "l"))
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()
    for action in ("write", "read"):
        assert f"large.record: {action} failed: the connection failed (ReadTimeout" in caplog.text


@pytest.mark.parametrize("faults", [[corrupt], [half, corrupt]])
def test_corrupted_download_is_repeated_once(emulator, tmp_path, caplog, faults, small):
    """Also a continued download, which the library does not check."""
    send(small)
    for fault in faults:
        emulator.fail("GET", "alt=media", fault)
    fetch(tmp_path / "l")
    assert (tmp_path / "l" / "small").read_bytes() == b"small"
    assert "downloading the file again" in caplog.text

    for fault in 2 * faults:
        emulator.fail("GET", "alt=media", fault)
    with pytest.raises(StorageError, match=r"gs://data/small: the bytes received have .* twice"):
        fetch(tmp_path / "m")
    assert not names_in(tmp_path / "m")


def _flip(handler: Any) -> bool:
    """The first bit of an upload flips on its way."""
    length = int(handler.headers["Content-Length"])
    data = handler.rfile.read(length)
    rest = handler.rfile

    class Body:
        def read(self, size: int) -> bytes:
            assert size == length
            return bytes([data[0] ^ 1]) + data[1:]

        def __getattr__(self, name: str) -> Any:
            return getattr(rest, name)

    handler.rfile = Body()
    return False


def test_corrupted_upload_is_deleted(emulator, large):
    emulator.fail("PUT", "upload_id", _flip)
    with pytest.raises(StorageError, match=r"the stored bytes have another checksum .* is deleted"):
        send(large)
    assert list_files("gs://data") == []


def _append(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def _shorten(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: QUARTER // 2])


@pytest.mark.parametrize("change", [_append, _shorten])
@pytest.mark.parametrize(("method", "after"), [("PUT", 1), ("POST", 0)])
def test_file_that_changes_during_its_upload(emulator, change, method, after, large):
    if method == "POST":
        large.write_bytes(large.read_bytes()[:QUARTER])
    emulator.fail(method, "upload", lambda handler: change(large), after=after)
    with pytest.raises(StorageError, match=r"large\.record changed while it was uploaded"):
        send(large)
    assert list_files("gs://data") == []


def test_no_network(emulator, monkeypatch, large):
    monkeypatch.setattr(connection, "ATTEMPTS", 2)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    message = r"gs://data/: read failed 2 times in a row.*: the connection failed \(Connection.*net"
    with pytest.raises(StorageError, match=message):
        send(large)


@pytest.fixture
def with_sigint() -> Iterator[None]:
    """SIGINT interrupts: a shell ignores it in what it runs in the background, as a test run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _refuse() -> None:
    raise StorageError("refused", "Ask for it")


def _interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize(
    ("end", "error"), [(_refuse, StorageError), (_interrupt, KeyboardInterrupt)]
)
def test_failure_and_ctrl_c_end_all_transfers(with_sigint, end, error):
    def transfer(name: str, advance: Any) -> None:
        if name == "a":
            end()
        while True:  # until it is cancelled
            advance(0)

    connected = Connection(None, 2, threading.Event())
    with pytest.raises(error):
        storage.run_all(connected, dict.fromkeys("abcd", 0), transfer, "copying")


def test_ctrl_c_ends_waiting_transfers(emulator, tmp_path, small, with_sigint):
    """The process ends while a transfer waits for its next attempt."""
    emulator.fail("POST", "", status(503), times=99)
    process = subprocess.Popen(
        [sys.executable, "-m", "estimator_det", "sync", str(tmp_path), "gs://data"],
        cwd=TESTS.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    while emulator.count("POST") < 3:  # the next attempt is 2 to 4 seconds later
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130 and "Traceback" not in error
    assert emulator.count("POST") < 8, "all attempts were made"


@pytest.mark.parametrize("kind", [TransportError, ConnectionError])
def test_unknown_certificate_is_not_tried_again(emulator, waits, kind):
    """As of a proxy that decrypts, which the library takes for a failed connection."""

    def request() -> None:
        raise kind(
            ConnectionError(
                "Max retries exceeded with url: /upload?upload_id=secret (Caused by SSLError("
                "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate "
                "verify failed: unable to get issuer')))"
            )
        )

    path = CloudPath("data", "x")
    with pytest.raises(StorageError, match="REQUESTS_CA_BUNDLE") as caught:
        Retry(connect(), path, "read")(request)()
    assert "secret" not in str(caught.value) and not waits


def test_login_that_is_not_valid_and_login_service_that_is_busy(emulator):
    from google.api_core.exceptions import Unauthorized

    path = CloudPath("data", "x")
    assert "are not valid" in str(storage_error(RefreshError("revoked"), path, "read"))
    refused = storage_error(Unauthorized("401"), path, "read")
    assert "does not accept the credentials (HTTP 401). Log in by: gcloud auth" in str(refused)
    busy = storage_error(RefreshError("503", retryable=True), path, "read")
    assert "read failed: the connection failed (RefreshError)" in str(busy)
