"""Uploads that resume and are checked.

A file above one chunk goes through an upload session of the service. Its address is saved in the
user's cache folder, readable by the user alone, until the upload is complete: it authorizes whoever
has it. A later upload of the same unchanged file resumes the session.
https://cloud.google.com/storage/docs/performing-resumable-uploads describes the protocol.
"""

from __future__ import annotations

import io
import logging
import os
from typing import Any, Optional

from estimator_det.cloud import sessions
from estimator_det.cloud.checksums import of_file
from estimator_det.cloud.connection import (
    Attempts,
    Connection,
    HttpError,
    StorageError,
    call,
    explained,
    raise_if_cancelled,
)
from estimator_det.cloud.downloads import Advance
from estimator_det.cloud.paths import CloudPath

_CONTENT_TYPE = "application/octet-stream"
_INCOMPLETE = 308
_SESSION_GONE = (400, 404, 410)

_LOG = logging.getLogger(__name__)


def upload_file(
    connection: Connection, local: str, target: CloudPath, advance: Advance = lambda _: None
) -> None:
    """Uploads a file, or what an interrupted upload left; memory does not grow with its size.

    Raises:
        StorageError: if the stored bytes fail their checksum, without permission, or if the
            service keeps failing.
        MissingError: if there is no such bucket.
        OSError: if the local file cannot be read.
    """
    before = os.stat(local)
    if before.st_size <= connection.options.chunk_bytes:
        _upload_small(connection, local, target, before, advance)
        return
    expected = of_file(local).text()
    session = _Session(connection, local, target, before)
    stored = session.upload(advance)
    session.forget()
    if stored.get("crc32c") == expected:
        return
    _delete(connection, target, stored)
    if _has_changed(local, before):
        raise StorageError(
            f"{local} changed while it was uploaded to {target}; the upload is deleted",
            "Run the command again once the file is complete",
        )
    raise StorageError(
        f"{target}: the stored bytes have the checksum {stored.get('crc32c')}, those of {local} "
        f"{expected}: something between here and the service changes them. The upload is deleted",
        "Check the proxy, then run the command again",
    )


def upload_bytes(connection: Connection, data: bytes, target: CloudPath) -> None:
    """Uploads a small content by one request; the service checks its CRC32C.

    Raises:
        StorageError: without permission, or if the service keeps failing.
        MissingError: if there is no such bucket.
    """

    def request() -> None:
        connection.blob(target).upload_from_file(
            io.BytesIO(data),
            size=len(data),
            content_type=_CONTENT_TYPE,
            checksum="crc32c",
            timeout=connection.options.timeout_secs,
            retry=None,
        )

    call(connection, target, "write", request)


def _has_changed(local: str, before: os.stat_result) -> bool:
    after = os.stat(local)
    return (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)


def _upload_small(
    connection: Connection,
    local: str,
    target: CloudPath,
    before: os.stat_result,
    advance: Advance,
) -> None:
    with open(local, "rb") as file:
        data = file.read(connection.options.chunk_bytes)
    if len(data) != before.st_size or _has_changed(local, before):
        raise StorageError(
            f"{local} changed while it was read, and is not uploaded to {target}",
            "Run the command again once the file is complete",
        )
    upload_bytes(connection, data, target)
    advance(len(data))


def _delete(connection: Connection, target: CloudPath, stored: Any) -> None:
    generation = int(stored["generation"]) if "generation" in stored else None
    call(
        connection,
        target,
        "write",
        lambda: connection.blob(target).delete(if_generation_match=generation, retry=None),
    )


class _Session:
    """An upload session of the service.

    Args:
        connection: For requests.
        local: The file.
        target: Where it goes.
        status: Of the file, before anything is read.
    """

    def __init__(
        self, connection: Connection, local: str, target: CloudPath, status: os.stat_result
    ) -> None:
        import requests

        self._connection, self._local, self._target = connection, local, target
        self._size = status.st_size
        self._key = sessions.key(local, status, target)
        self._address = sessions.find(self._key)
        self._http = requests.Session()

    def upload(self, advance: Advance) -> Any:
        """Sends all bytes; returns what the service says of the stored file."""
        attempts = Attempts(self._connection, f"{self._target}: writing")
        position: Optional[int] = None  # None: ask the service
        shown = 0
        with open(self._local, "rb") as file:
            while True:
                raise_if_cancelled(self._connection)
                try:
                    if self._address is None:
                        self._start()
                        position = 0
                    answer = self._send(file, position)
                except Exception as error:
                    if (known := explained(error, self._target, "write")) is not None:
                        raise known from error
                    attempts.failed(error)
                    position = None
                    continue
                if answer.status_code in (200, 201):
                    advance(self._size - shown)
                    return answer.json()
                if answer.status_code in _SESSION_GONE:
                    _LOG.warning("%s: the earlier upload has expired; starting anew", self._target)
                    self.forget()
                    attempts.failed(ConnectionError("the upload session has ended"))
                    continue
                received = _received(answer)
                if position is not None and received > position:
                    attempts.progressed()
                advance(received - shown)
                shown = position = received

    def forget(self) -> None:
        """Drops the saved address."""
        sessions.remove(self._key)
        self._address = None

    def _start(self) -> None:
        address = self._connection.blob(self._target).create_resumable_upload_session(
            content_type=_CONTENT_TYPE,
            size=self._size,
            checksum=None,
            timeout=self._connection.options.timeout_secs,
            retry=None,
        )
        self._address = str(address)
        sessions.save(self._key, self._address)

    def _send(self, file: Any, position: Optional[int]) -> Any:
        """Sends the chunk at a position, or asks what the service has.

        Raises:
            HttpError: for answers other than success, incomplete and the end of the session.
        """
        data, span = b"", "*"
        if position is not None:
            file.seek(position)
            data = file.read(min(self._connection.options.chunk_bytes, self._size - position))
            if not data:
                raise StorageError(
                    f"{self._local} became shorter while it was uploaded to {self._target}",
                    "Run the command again once the file is complete",
                )
            span = f"{position}-{position + len(data) - 1}"
        answer = self._http.put(
            str(self._address),
            data=data,
            headers={"Content-Range": f"bytes {span}/{self._size}"},
            timeout=self._connection.options.timeout_secs,
            allow_redirects=False,
        )
        if answer.status_code not in (200, 201, _INCOMPLETE, *_SESSION_GONE):
            raise HttpError(answer)
        return answer


def _received(answer: Any) -> int:
    """How many bytes the service has: "bytes=0-99" for 100, no header for none."""
    last = answer.headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isdecimal() else 0
