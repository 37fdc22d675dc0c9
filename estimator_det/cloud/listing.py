"""What is in a bucket."""

from __future__ import annotations

import datetime
from typing import Any, List, NamedTuple, Optional

from estimator_det.cloud.connection import Connection, call, no_bucket, no_file
from estimator_det.cloud.paths import CloudPath

_FIELDS = "items(name,size,crc32c,generation,updated,contentEncoding),nextPageToken"


class RemoteFile(NamedTuple):
    """A file in Cloud Storage, as it was when it was listed."""

    path: CloudPath
    size: int  # bytes
    crc32c: str  # base64 of the big-endian checksum
    generation: int  # changes whenever the file is replaced
    updated: Optional[datetime.datetime]
    encoding: str  # "gzip" for content that is stored compressed


def list_files(connection: Connection, path: CloudPath) -> List[RemoteFile]:
    """The files that a path means: one file, all of a folder, or those of a pattern; by name.

    Raises:
        MissingError: if there is no such bucket.
        StorageError: without permission, or if the service keeps failing.
    """
    from google.api_core.exceptions import NotFound

    def request() -> List[Any]:
        options = connection.options
        return list(
            connection.client.list_blobs(
                path.bucket,
                prefix=path.prefix,
                fields=_FIELDS,
                timeout=options.timeout_secs,
                retry=None,
            )
        )

    try:
        blobs = call(connection, path, "read", request)
    except NotFound:
        raise no_bucket(path.bucket) from None
    found = [remote_file(blob) for blob in blobs]
    # A name with a slash at its end stands for an empty folder.
    return sorted(
        one for one in found if path.matches(one.path.name) and not one.path.name.endswith("/")
    )


def remote_file(blob: Any) -> RemoteFile:
    """What Google's object says of a file."""
    return RemoteFile(
        CloudPath(blob.bucket.name, blob.name),
        int(blob.size or 0),
        blob.crc32c or "",
        int(blob.generation or 0),
        blob.updated,
        blob.content_encoding or "",
    )


def read_bytes(
    connection: Connection, path: CloudPath, start: int = 0, end: Optional[int] = None
) -> bytes:
    """The bytes [start, end) of a small file, or of a part of a file; held in memory.

    Raises:
        MissingError: if there is no such bucket or file.
        StorageError: without permission, or if the service keeps failing.
    """
    from google.api_core.exceptions import NotFound

    def request() -> bytes:
        return bytes(
            connection.blob(path).download_as_bytes(
                start=start,
                end=None if end is None else end - 1,
                raw_download=True,
                checksum=None,
                timeout=connection.options.timeout_secs,
                retry=None,
            )
        )

    try:
        return call(connection, path, "read", request)
    except NotFound:
        raise no_file(path) from None
