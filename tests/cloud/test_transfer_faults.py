"""Copies that are interrupted, delayed or corrupted: resumed, retried or refused."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any, List

import pytest
import requests
from google.auth.exceptions import RefreshError, TransportError

from estimator_det.cloud import sessions, storage, uploads
from estimator_det.cloud.connection import StorageError, connect, explained, is_transient
from estimator_det.cloud.paths import CloudPath
from tests.cloud.emulator import Emulator, corrupt, cut, half, hang, status
from tests.cloud.test_storage import QUARTER, make_large, options_of
from tests.conftest import TESTS


def test_failed_upload_is_resumed_by_the_next_one(
    emulator: Emulator, own_cache: pathlib.Path, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)
    emulator.fail("PUT", "upload_id", cut, times=99, after=2)
    with pytest.raises(StorageError, match=r"large.record: writing failed 3 times in a row"):
        storage.upload([str(large)], "gs://data", options=options_of(waits, attempts=3))
    (saved,) = (own_cache / "estimator-det" / "uploads").iterdir()
    assert saved.stat().st_mode & 0o077 == 0
    assert emulator.count("POST") == 1

    emulator.faults.clear()
    sent = emulator.count("PUT")
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    assert emulator.content("large.record") == large.read_bytes()
    assert emulator.count("POST") == 1  # the same session
    assert emulator.count("PUT") == sent + 3  # what it has; then two of the four chunks
    assert not saved.exists()


def test_killed_upload_is_resumed(
    emulator: Emulator, own_cache: pathlib.Path, tmp_path: pathlib.Path, waits: List[float]
):
    """A process that ends without any handler, as of a machine that is switched off."""
    large = make_large(tmp_path)
    program = (
        "import os; from estimator_det.cloud import storage\n"
        "def die(count):\n"
        "    sent.append(count)\n"
        "    if sum(sent): os._exit(9)\n"
        "sent = []\n"
        "from estimator_det.cloud import uploads, connection, paths\n"
        f"options = connection.Options(chunk_bytes={QUARTER})\n"
        "target = paths.CloudPath('data', 'large.record')\n"
        f"uploads.upload_file(connection.connect(options), {str(large)!r}, target, die)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS.parent, check=False)
    assert done.returncode == 9
    emulator.requests.clear()
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    assert emulator.content("large.record") == large.read_bytes()
    assert emulator.count("POST") == 0 and emulator.count("PUT") == 4


def test_file_that_has_changed_is_uploaded_anew(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)
    emulator.fail("PUT", "upload_id", cut, times=99, after=2)
    with pytest.raises(StorageError):
        storage.upload([str(large)], "gs://data", options=options_of(waits, attempts=1))
    emulator.faults.clear()
    large.write_bytes(large.read_bytes()[::-1])
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    assert emulator.content("large.record") == large.read_bytes()


@pytest.mark.parametrize("code", [404, 410])
def test_session_that_has_ended_is_replaced(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float], code: int
):
    large = make_large(tmp_path)
    emulator.fail("PUT", "upload_id", status(code), after=1)
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    assert emulator.content("large.record") == large.read_bytes()
    assert emulator.count("POST") == 2


def test_address_of_a_week_ago_is_not_used(own_cache: pathlib.Path):
    sessions.save("name", "http://address")
    assert sessions.find("name") == "http://address"
    path = own_cache / "estimator-det" / "uploads" / "name"
    os.utime(path, (0, path.stat().st_mtime - sessions.WEEK_SECS - 1))
    assert sessions.find("name") is None and not path.exists()


def test_no_place_for_addresses_is_a_warning(
    own_cache: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    own_cache.write_text("a file")
    assert sessions.find("name") is None
    sessions.save("name", "http://secret")
    sessions.remove("name")
    assert "if the upload is interrupted, it starts anew" in caplog.text
    assert "secret" not in caplog.text


def test_interrupted_download_is_resumed(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    local = tmp_path / "local"
    emulator.fail("GET", "alt=media", half)
    emulator.fail("GET", "alt=media", status(503), times=99)
    with pytest.raises(StorageError, match=r"reading failed 2 times in a row.* HTTP 503"):
        storage.download(["gs://data"], str(local), options=options_of(waits, attempts=2))
    (part,) = local.iterdir()
    assert large.stat().st_size // 2 <= part.stat().st_size + 8192
    assert large.read_bytes().startswith(part.read_bytes())

    emulator.faults.clear()
    ranges: List[str] = []
    emulator.fail("GET", "alt=media", lambda handler: ranges.append(handler.headers["Range"]))
    size = part.stat().st_size
    storage.download(["gs://data"], str(local), options=options_of(waits))
    assert ranges == [f"bytes={size}-{large.stat().st_size - 1}"]
    assert (local / large.name).read_bytes() == large.read_bytes()
    assert [path.name for path in local.iterdir()] == [large.name]


def test_connection_that_ends_within_a_file(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    # Each answer brings half of the rest: progress, so that failures do not add up.
    emulator.fail("GET", "alt=media", half, times=5)
    storage.download(["gs://data"], str(tmp_path / "l"), options=options_of(waits, attempts=2))
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()
    assert len(waits) == 5


@pytest.mark.parametrize("fault", [status(503), status(429), status(500), cut])
def test_failures_that_pass_are_retried_with_growing_delays(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float], fault: Any
):
    (tmp_path / "small").write_bytes(b"small")
    large = make_large(tmp_path)
    emulator.fail("POST", "uploadType=multipart", fault, times=3)
    storage.upload([str(tmp_path / "small")], "gs://data", options=options_of(waits))
    assert len(waits) == 3
    for wait, longest in zip(waits, (1.0, 2.0, 4.0)):
        assert longest / 2 <= wait <= longest
    emulator.fail("PUT", "upload_id", fault, times=2, after=1)
    storage.upload([str(large)], "gs://data", options=options_of(waits))
    emulator.fail("GET", "/o?", fault)
    emulator.fail("GET", "alt=media", fault)
    done = storage.download(["gs://data"], str(tmp_path / "l"), options=options_of(waits))
    assert done.files == 2 and len(waits) == 7
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()


def test_delays_have_a_limit(emulator: Emulator, waits: List[float]):
    emulator.fail("GET", "/o?", status(503), times=99)
    options = options_of(waits, attempts=9, longest_delay_secs=4.0)
    with pytest.raises(StorageError, match="9 times in a row, at last with: HTTP 503"):
        storage.list_files("gs://data", options)
    assert len(waits) == 8 and max(waits) <= 4.0


def test_timeouts_are_retried(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float], caplog: Any
):
    large = make_large(tmp_path)
    options = options_of(waits, timeout_secs=0.2)
    emulator.fail("PUT", "upload_id", hang, after=1)
    storage.upload([str(large)], "gs://data", options=options)
    emulator.fail("GET", "alt=media", hang)
    storage.download(["gs://data"], str(tmp_path / "l"), options=options)
    assert (tmp_path / "l" / large.name).read_bytes() == large.read_bytes()
    assert len(waits) == 2
    assert "large.record: writing failed: no answer in time; attempt 2 of 8" in caplog.text


def test_corrupted_download_is_repeated_once(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float], caplog: Any
):
    (tmp_path / "small").write_bytes(b"small")
    storage.upload([str(tmp_path / "small")], "gs://data", options=options_of(waits))
    emulator.fail("GET", "alt=media", corrupt)
    storage.download(["gs://data"], str(tmp_path / "l"), options=options_of(waits))
    assert (tmp_path / "l" / "small").read_bytes() == b"small"
    assert "downloading the file again" in caplog.text

    emulator.fail("GET", "alt=media", corrupt, times=2)
    with pytest.raises(StorageError, match=r"gs://data/small: the bytes received have .* twice"):
        storage.download(["gs://data"], str(tmp_path / "m"), options=options_of(waits))
    assert not list((tmp_path / "m").iterdir())


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


def test_corrupted_upload_is_deleted(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)
    emulator.fail("PUT", "upload_id", _flip)
    with pytest.raises(StorageError, match=r"the stored bytes have the checksum .* is deleted"):
        storage.upload([str(large)], "gs://data", options=options_of(waits))
    assert storage.list_files("gs://data", options_of(waits)) == []


def test_file_that_changes_during_its_upload(
    emulator: Emulator, tmp_path: pathlib.Path, waits: List[float]
):
    large = make_large(tmp_path)

    def change(handler: Any) -> bool:
        large.write_bytes(large.read_bytes()[:-1] + b"!")
        return False

    emulator.fail("PUT", "upload_id", change, after=1)
    with pytest.raises(StorageError, match="changed while it was uploaded"):
        storage.upload([str(large)], "gs://data", options=options_of(waits))

    def shorten(handler: Any) -> bool:
        large.write_bytes(large.read_bytes()[:QUARTER])
        return False

    emulator.fail("PUT", "upload_id", shorten, after=1)
    with pytest.raises(StorageError, match="became shorter while it was uploaded"):
        storage.upload([str(large)], "gs://data", options=options_of(waits))


@pytest.mark.parametrize("change", [b"x" * 12, b"", b"other"])
def test_small_file_that_changes_while_it_is_read_is_not_uploaded(
    emulator: Emulator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, change: bytes
):
    path = tmp_path / "small"
    path.write_bytes(b"small")
    os.utime(path, (1, 1))
    before = os.stat(path)
    status_of = os.stat
    statuses = [before]

    def first_the_old_one(*arguments: Any, **named: Any) -> os.stat_result:
        return statuses.pop() if statuses else status_of(*arguments, **named)

    path.write_bytes(change)
    monkeypatch.setattr(uploads.os, "stat", first_the_old_one)
    target = CloudPath("data", "small")
    with pytest.raises(StorageError, match="small changed while it was read, and is not uploaded"):
        uploads.upload_file(connect(options_of([])), str(path), target)
    assert emulator.count("POST") == 0


def test_unknown_certificate_is_not_tried_again():
    """Of a proxy that decrypts: `requests` counts it to the failures of a connection."""
    path = CloudPath("data", "x")
    found = requests.exceptions.SSLError(
        "HTTPSConnectionPool(host='storage.googleapis.com', port=443): Max retries exceeded with "
        "url: /upload?upload_id=secret (Caused by SSLError(SSLCertVerificationError(1, "
        "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer')))"
    )
    for error in (found, TransportError(found)):
        known = explained(error, path, "read")
        assert isinstance(known, StorageError) and "REQUESTS_CA_BUNDLE" in known.remedy
        assert "secret" not in str(known)
    assert explained(requests.exceptions.SSLError("EOF occurred"), path, "read") is None


def test_login_service_that_is_busy_is_tried_again():
    path = CloudPath("data", "x")
    busy = RefreshError("503", retryable=True)
    assert is_transient(busy) and explained(busy, path, "read") is None
    assert explained(RefreshError("revoked"), path, "read") is not None
