"""Downloads that resume and are checked.

A download goes to FILE.estimator-det-part-GENERATION and takes the file's name once its checksum is
right. A later download of the same generation resumes the part.
"""

from __future__ import annotations

import glob
import logging
import os
from typing import Any, Callable

from estimator_det.cloud.checksums import Checksum, of_file
from estimator_det.cloud.connection import (
    Attempts,
    Connection,
    StorageError,
    explained,
    raise_if_cancelled,
)
from estimator_det.cloud.listing import RemoteFile

# Of a name that no other program gives: parts of earlier downloads are removed.
PART = ".estimator-det-part-"

_LOG = logging.getLogger(__name__)

Advance = Callable[[int], Any]  # is given numbers of bytes that have been transferred


class FileGone(Exception):
    """The file was deleted or replaced after it was listed."""


class Writer:
    """Passes what arrives to a file and a checksum."""

    def __init__(self, connection: Connection, file: Any, sofar: Checksum, advance: Advance):
        self._connection, self._file, self._advance = connection, file, advance
        self.checksum = sofar

    def write(self, data: bytes) -> int:
        raise_if_cancelled(self._connection)
        self._file.write(data)
        self.checksum.update(data)
        self._advance(len(data))
        return len(data)


def download_file(
    connection: Connection, remote: RemoteFile, local: str, advance: Advance = lambda _: None
) -> None:
    """Downloads a file, or what is missing of its part; memory does not grow with its size.

    Raises:
        FileGone: if the file was deleted or replaced meanwhile.
        StorageError: if its bytes fail their checksum twice, without permission, or if the service
            keeps failing.
        OSError: if the local file cannot be written.
    """
    if remote.encoding:
        raise StorageError(
            f"{remote.path} is stored compressed (Content-Encoding: {remote.encoding}), which "
            "TensorFlow reads as compressed bytes",
            "Upload it again without -z, -Z or -j of gcloud and gsutil",
        )
    os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
    part = f"{local}{PART}{remote.generation}"
    for other in glob.glob(f"{glob.escape(local)}{PART}*"):
        if other != part:
            os.remove(other)
    for is_last in (False, True):
        try:
            found = _fetch(connection, remote, part, advance)
        except FileGone:
            os.remove(part)
            raise
        if found == remote.crc32c:
            break
        os.remove(part)
        what = (
            f"{remote.path}: the bytes received have the checksum {found}, those stored "
            f"{remote.crc32c}"
        )
        if is_last:
            raise StorageError(
                f"{what}, twice: something between here and the service changes them, or the disk "
                "does",
                "Check the proxy and the disk, then run the command again",
            )
        _LOG.warning("%s; downloading the file again", what)
        advance(-remote.size)
    os.replace(part, local)
    if remote.updated is not None:
        moment = remote.updated.timestamp()
        os.utime(local, (moment, moment))


def _fetch(connection: Connection, remote: RemoteFile, part: str, advance: Advance) -> str:
    """Completes the part; returns the checksum of all its bytes."""
    sofar = of_file(part) if os.path.exists(part) else Checksum()
    if sofar.size > remote.size:
        os.remove(part)
        sofar = Checksum()
    advance(sofar.size)
    with open(part, "ab") as file:
        read_range(connection, remote, Writer(connection, file, sofar, advance))
    return sofar.text()


def read_range(connection: Connection, remote: RemoteFile, writer: Writer) -> None:
    """Reads from where the writer's checksum is to the end of the file."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    attempts = Attempts(connection, f"{remote.path}: reading")
    blob = connection.blob(remote.path, remote.generation)
    while writer.checksum.size < remote.size:
        start = writer.checksum.size
        try:
            blob.download_to_file(
                writer,
                start=start,
                end=remote.size - 1,
                raw_download=True,
                checksum=None,
                timeout=connection.options.timeout_secs,
                retry=None,
            )
        except (NotFound, PreconditionFailed):
            raise FileGone(str(remote.path)) from None
        except Exception as error:
            if (known := explained(error, remote.path, "read")) is not None:
                raise known from error
            if writer.checksum.size > start:
                attempts.progressed()
            attempts.failed(error)
        else:
            if writer.checksum.size == start:
                attempts.failed(ConnectionError("an empty answer"))
