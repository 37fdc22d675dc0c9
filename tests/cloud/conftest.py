"""Fixtures of the tests with Cloud Storage."""

from __future__ import annotations

import pathlib
from typing import Iterator, List

import pytest

from estimator_det.programs.cloud import connection

# Uploads above this size are sent in parts; 8 MiB outside of tests.
MOST_AT_ONCE = 2**18


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """No login of this machine is found."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def emulator(
    no_login: None, waits: List[float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[object]:
    """A running emulator with an empty bucket, data; the library is directed to it."""
    from tests.cloud.emulator import running

    with running() as started:
        started.bucket()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", started.address)
        connection.connect()  # imports Google's library, without its warnings
        monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", MOST_AT_ONCE)
        yield started


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> List[float]:
    """Seconds that transfers would have waited before further attempts; they send in parts."""
    seconds: List[float] = []
    monkeypatch.setattr(connection.Connection, "wait", lambda _, secs: seconds.append(secs))
    monkeypatch.setattr(connection, "CHUNK_BYTES", MOST_AT_ONCE)
    monkeypatch.setattr(connection, "TIMEOUT_SECS", 5.0)
    return seconds


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small"
    path.write_bytes(b"small")
    return path


@pytest.fixture
def large(tmp_path: pathlib.Path) -> pathlib.Path:
    """Three parts and a bit, without repetition."""
    path = tmp_path / "large.record"
    numbers = range(3 * MOST_AT_ONCE // 4 + 7)
    path.write_bytes(b"".join(number.to_bytes(4, "big") for number in numbers))
    return path
