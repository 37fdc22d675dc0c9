"""Fixtures of the tests with Cloud Storage."""

from __future__ import annotations

import pathlib
from typing import Iterator, List

import pytest


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The cache folder of the user; no login of this machine is found."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def emulator(own_cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A running emulator with an empty bucket, data; the library is directed to it."""
    from tests.cloud.emulator import running

    with running() as started:
        started.bucket()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", started.address)
        yield started


@pytest.fixture
def waits() -> List[float]:
    """Seconds that transfers would have waited before further attempts."""
    return []
