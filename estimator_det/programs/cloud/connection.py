"""The connection to Cloud Storage: credentials, retries, and errors in words.

Credentials come from Google's default chain. No message contains credentials or the address of
an upload, which authorizes whoever has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from estimator_det.console.printing import plain
from estimator_det.errors import NotInStorageError, StorageError
from estimator_det.programs.cloud.paths import CloudPath

_LOGIN = (
    "Log in by: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS to "
    "the key file of a service account; or, on a machine of Google Cloud, give it a service account"
)
_ROLES = {"read": "roles/storage.objectViewer", "write": "roles/storage.objectAdmin"}
_RERUN = "Check the network and run the command again: files that are complete are skipped"
_UNKNOWN_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's code

THREADS = 8  # files at once
CHUNK_BYTES = 8 * 2**20  # bytes per request of an upload above 8 MiB; in memory by thread
ATTEMPTS = 8  # attempts of a request, until its transfer fails
TIMEOUT_SECS = 60.0  # to connect, and without a byte received
_LONGEST_DELAY_SECS = 32.0

_LOG = logging.getLogger(__name__)


class Cancelled(Exception):
    """Another transfer has failed, or the user has interrupted the program."""


class Connection(NamedTuple):
    """Google's client for transfers that end together."""

    client: Any  # google.cloud.storage.Client
    threads: int
    stop: threading.Event  # set: all threads end as soon as they can

    def blob(self, path: CloudPath) -> Any:
        """Google's object for a file, without a request."""
        bucket = self.client.bucket(path.bucket)
        return bucket.blob(path.name, chunk_size=CHUNK_BYTES)

    def list_blobs(self, path: CloudPath) -> List[Any]:
        """Google's objects for the files that a path means, by name.

        A path is a file, a folder, or a pattern whose wildcards match no slash.
        """
        fields = "items(name,size,crc32c,generation,updated,contentEncoding),nextPageToken"
        settings: Dict[str, Any] = {"prefix": path.prefix, "fields": fields}
        try:
            with self.request(path, "read") as sending:
                # Listing reads pages lazily, so errors must come inside of the context.
                blobs = list(self.client.list_blobs(path.bucket, **settings, **sending))
        except NotInStorageError:
            raise _no_bucket(path.bucket) from None
        # A name with a slash at its end stands for an empty folder.
        files = (blob for blob in blobs if not blob.name.endswith("/"))
        return sorted((b for b in files if path.matches(b.name)), key=lambda blob: blob.name)

    def wait(self, seconds: float) -> None:
        """Waits before another attempt, or until the transfer is cancelled."""
        if self.stop.wait(seconds):
            raise Cancelled

    @contextlib.contextmanager
    def request(self, path: CloudPath, action: str) -> Iterator[Dict[str, Any]]:
        """Context manager: errors of Google's library become StorageErrors.

        The action is "read" or "write". Yields arguments for each call of the library.
        """
        try:
            yield {"timeout": TIMEOUT_SECS, "retry": Retry(self, path, action)}
        except Exception as error:
            if (known := storage_error(error, path, action)) is None:
                raise
            raise known from error


class Retry:
    """Google's retries with a log line for each, and an end after some without progress.

    The library's own limit is a time for the whole file, which a large one always exceeds.
    """

    def __init__(self, connection: Connection, path: CloudPath, action: str) -> None:
        self._connection, self._path, self._action = connection, path, action
        self.failures = 0  # since the last progress

    def __call__(self, request: Callable[[], Any]) -> Callable[[], Any]:
        """Adds the retries to a request; Google's library calls this for each request."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        self.failures = 0
        # The library's sleep cannot be cancelled: `_wait` waits.
        policy = DEFAULT_RETRY.with_timeout(None).with_delay(initial=0.0, maximum=0.0)
        return policy(request, on_error=self._wait)

    def _wait(self, error: BaseException) -> None:
        if _UNKNOWN_CERTIFICATE in str(error):  # The library takes it for a failed connection.
            raise _untrusted(self._path) from error
        what = f"{self._path}: {self._action}"
        # Counted since the last progress: a large file may fail often and still arrive.
        self.failures += 1
        if self.failures >= ATTEMPTS:
            raise StorageError(
                f"{what} failed {self.failures} times in a row, at last with: {_reason(error)}",
                _RERUN,
            ) from error
        # Clients that failed together do not retry together.
        delay = min(2.0 ** (self.failures - 1), _LONGEST_DELAY_SECS) * random.uniform(0.5, 1.0)
        _LOG.warning(
            "%s failed: %s; attempt %d of %d in %.1f s",
            *(what, _reason(error), self.failures + 1, ATTEMPTS, delay),
        )
        self._connection.wait(delay)


def connect(threads: int = THREADS) -> Connection:
    """A connection with the credentials of Google's default chain."""
    # These libraries warn of Python versions and of logins without a quota project.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage

        # At the level DEBUG it logs addresses of uploads.
        logging.getLogger("urllib3").setLevel(logging.WARNING)
        try:
            client = storage.Client(project=None)  # files need no project
        except DefaultCredentialsError as error:
            file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
            about = f" in GOOGLE_APPLICATION_CREDENTIALS={plain(file)}" if file else ""
            what = f"no usable credentials for Google Cloud were found{about}"
            raise StorageError(what, _LOGIN) from error
    return Connection(client, threads, threading.Event())


def storage_error(error: BaseException, path: CloudPath, action: str) -> Optional[StorageError]:
    """The error for the user for one of Google's library; None for errors of other origin."""
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage.exceptions import DataCorruption

    if _UNKNOWN_CERTIFICATE in str(error):
        return _untrusted(path)
    if isinstance(error, DataCorruption):  # raised by uploads; downloads are checked here
        return StorageError(
            f"{path}: the stored bytes have another checksum than those sent: something between "
            "here and the service changes them. The upload is deleted",
            "Check the proxy, then run the command again",
        )
    code = _code(error)
    if code == 401:
        what = f"{path}: the service does not accept the credentials (HTTP 401)"
        return StorageError(what, _LOGIN)
    if code == 403:
        return StorageError(
            f"{path}: no permission to {action} ({_reason(error)})",
            "Give your account the role: gcloud storage buckets add-iam-policy-binding "
            f"gs://{path.bucket} --member=user:YOU --role={_ROLES[action]}; or log in as an "
            "account that has it",
        )
    # A write to a missing bucket is answered like a read of a missing file.
    if code == 404:
        return _no_bucket(path.bucket) if action == "write" else no_file(path)
    if isinstance(error, GoogleAuthError) and not getattr(error, "retryable", False):
        return StorageError(
            f"{path}: the credentials for Google Cloud are not valid, or no longer "
            f"({type(error).__name__})",
            _LOGIN,
        )
    if code or isinstance(error, GoogleAuthError):
        return StorageError(f"{path}: {action} failed: {_reason(error)}", _RERUN)
    return None


def no_file(path: CloudPath, kind: str = "file") -> NotInStorageError:
    """The error for a path that means no file."""
    return NotInStorageError(
        f"{path}: no such {kind}",
        f"Correct the path; gcloud storage ls gs://{path.bucket} lists the bucket",
    )


def _no_bucket(bucket: str) -> NotInStorageError:
    return NotInStorageError(
        f"there is no bucket gs://{bucket}",
        "Correct its name (gcloud storage buckets list shows yours), or make it: gcloud storage "
        f"buckets create gs://{bucket} --location=REGION",
    )


def _untrusted(path: CloudPath) -> StorageError:
    return StorageError(
        f"{path}: the certificate of the service is not signed by an authority that this machine "
        "trusts, as behind a proxy that decrypts",
        "Set REQUESTS_CA_BUNDLE to the file of your network's certificates, and check the clock "
        "of this machine",
    )


def _code(error: BaseException) -> int:
    """The HTTP status of an error; 0 for other errors."""
    answer = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(answer, "status_code", 0)
    return int(code) if isinstance(code, int) else 0


def _reason(error: BaseException) -> str:
    """Text of an error without addresses: the address of an upload is a secret."""
    code = _code(error)
    if not code:
        return f"the connection failed ({type(error).__name__})"
    # The message of the service contains the account and the missing permission.
    response = getattr(error, "response", None)
    try:
        text = str(response.json()["error"]["message"]) if response is not None else ""
    except (ValueError, KeyError, TypeError):
        text = ""
    return f"HTTP {code}{': ' + plain(text.rstrip('.')) if text else ''}"
