"""Uploads and downloads of single files through Google's library, checked by CRC32C."""

from __future__ import annotations

import base64
import logging
import os
from typing import Any, Callable

import google_crc32c

from estimator_det.errors import StorageError
from estimator_det.files import atomic
from estimator_det.programs.cloud.connection import Connection, storage_error
from estimator_det.programs.cloud.paths import CloudPath

_LOG = logging.getLogger(__name__)

Advance = Callable[[int], Any]  # is called with numbers of bytes that have been transferred


def path_of(blob: Any) -> CloudPath:
    """The path of Google's object for a file."""
    return CloudPath(blob.bucket.name, blob.name)


def is_same(local: str, blob: Any) -> bool:
    """True if a local file exists and has the size and checksum of a stored one."""
    # The size is cheaper than the checksum, which reads the whole file.
    has_size = os.path.isfile(local) and os.path.getsize(local) == blob.size
    return has_size and _checksum(local) == blob.crc32c


def _checksum(local: str) -> str:
    """CRC32C of a file as the service writes it: base64 of the four bytes, big-endian."""
    checksum = google_crc32c.Checksum()
    with open(local, "rb") as file:
        for _ in checksum.consume(file, 2**20):
            pass
    return base64.b64encode(checksum.digest()).decode("ascii")


def upload_file(connection: Connection, local: str, target: CloudPath, advance: Advance) -> None:
    """Uploads a file; raises StorageError, and deletes the upload, if it changes meanwhile."""
    from tqdm.utils import CallbackIOWrapper

    blob = connection.blob(target)
    changed = StorageError(
        f"{local} changed while it was uploaded to {target}, or the service took only a part of it",
        "Run the command again once the file is complete",
    )
    with open(local, "rb") as file, connection.request(target, "write") as sending:
        before = os.fstat(file.fileno())
        try:
            blob.upload_from_file(
                CallbackIOWrapper(advance, file, "read"),
                size=before.st_size,
                content_type="application/octet-stream",
                checksum="crc32c",
                **sending,
            )
        except ValueError as error:  # from the library's checks of what it reads
            raise storage_error(error, target, "write") or changed from error
        # The library checks what it has read, not whether the file changed meanwhile.
        after = os.stat(local)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            blob.delete(if_generation_match=blob.generation, **sending)
            raise changed


def download_file(connection: Connection, blob: Any, local: str, advance: Advance) -> None:
    """Downloads a file that was listed; raises NotInStorageError if it has been replaced since."""
    path, expected, size, updated = path_of(blob), blob.crc32c, blob.size, blob.updated
    if blob.content_encoding:
        raise StorageError(
            f"{path} is stored compressed (Content-Encoding: {blob.content_encoding}), which "
            "TensorFlow reads as compressed bytes",
            "Upload it again without -z, -Z or -j of gcloud and gsutil",
        )
    os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
    with atomic.replaced(local) as unfinished:
        received = _fetch(connection, blob, unfinished, advance)
        if received != expected:
            what = f"{path}: the bytes received have the checksum {received}, not {expected}"
            _LOG.warning("%s; downloading the file again", what)
            advance(-size)
            if _fetch(connection, blob, unfinished, advance) != expected:
                raise StorageError(
                    f"{what}, twice: something between here and the service changes them, or the "
                    "disk does",
                    "Check the proxy and the disk, then run the command again",
                )
    # TensorBoard and evaluators order files by their times.
    os.utime(local, (updated.timestamp(), updated.timestamp()))


def _fetch(connection: Connection, blob: Any, unfinished: str, advance: Advance) -> str:
    """Downloads a file; returns the checksum of all bytes.

    The library checks none of a download that it has continued.
    """
    from tqdm.utils import CallbackIOWrapper

    with open(unfinished, "wb") as file, connection.request(path_of(blob), "read") as sending:

        def note(count: int) -> None:
            sending["retry"].failures = 0  # counted since the last bytes that arrived
            advance(count)

        target = CallbackIOWrapper(note, file, "write")
        blob.download_to_file(target, raw_download=True, checksum=None, **sending)
    return _checksum(unfinished)
