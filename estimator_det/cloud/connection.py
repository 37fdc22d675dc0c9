"""The connection to Cloud Storage: credentials, retries, and errors in words.

Credentials are those of Google's default chain (GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, the
machine's service account). No message contains credentials or the address of an upload session,
which authorizes whoever has it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import threading
import warnings
from typing import Any, Callable, NamedTuple, Optional

from estimator_det.cloud.paths import CloudPath
from estimator_det.config.printing import plain
from model_fn.checkpoints.errors import RunError

# Of Google's library: the address of an emulator, which needs no credentials.
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"

MIB = 2**20

LOGIN = (
    "Log in by: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS to "
    "the key file of a service account; or, on a machine of Google Cloud, give it a service account"
)
_TRANSIENT_CODES = (408, 429, 500, 502, 503, 504)
_UNKNOWN_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"  # of OpenSSL
_ROLES = {"read": "roles/storage.objectViewer", "write": "roles/storage.objectAdmin"}

_LOG = logging.getLogger(__name__)


class StorageError(RunError):
    """Cloud Storage refuses or fails.

    Attributes:
        what: What is wrong, with the path.
        remedy: What to do about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what, self.remedy = what, remedy


class MissingError(StorageError, FileNotFoundError):
    """There is no such bucket or file."""


class Cancelled(Exception):
    """Another transfer has failed, or the user has interrupted the program."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How files are transferred.

    Attributes:
        threads: Files at once.
        chunk_bytes: Bytes of one request of an upload, a multiple of 256 KiB; each thread holds so
            many in memory. Smaller files are sent by one request.
        attempts: How often a request is tried before the transfer fails; counted anew after each
            progress.
        first_delay_secs: Before the second attempt; the following ones double.
        longest_delay_secs: The limit of this doubling.
        timeout_secs: To connect, and without a byte received.
        sleep: Waits for so many seconds; None waits until the transfer is cancelled, too.
        shows_progress: Show a progress bar on a terminal, or log a line now and then elsewhere.
    """

    threads: int = 8
    chunk_bytes: int = 8 * MIB
    attempts: int = 8
    first_delay_secs: float = 1.0
    longest_delay_secs: float = 32.0
    timeout_secs: float = 60.0
    sleep: Optional[Callable[[float], None]] = None
    shows_progress: bool = True

    def __post_init__(self) -> None:
        if self.threads < 1 or self.attempts < 1:
            raise ValueError("threads and attempts must be 1 or more")
        if self.chunk_bytes < 1 or self.chunk_bytes % (MIB // 4):
            raise ValueError("chunk_bytes must be a multiple of 256 KiB")


class Connection(NamedTuple):
    """What every request needs."""

    client: Any  # google.cloud.storage.Client
    options: Options
    stop: threading.Event  # set: all threads end as soon as they can

    def bucket(self, path: CloudPath) -> Any:
        """Google's object for the bucket of a path; asks nothing."""
        return self.client.bucket(path.bucket)

    def blob(self, path: CloudPath, generation: Optional[int] = None) -> Any:
        """Google's object for a file; asks nothing."""
        return self.bucket(path).blob(path.name, generation=generation)


def connect(options: Optional[Options] = None) -> Connection:
    """A connection with the credentials of Google's default chain.

    Raises:
        StorageError: without credentials.
    """
    # These libraries warn of Python versions and of logins without a quota project.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage

        # At the level DEBUG it logs addresses of upload sessions.
        logging.getLogger("urllib3").setLevel(logging.WARNING)
        if os.environ.get(EMULATOR_VARIABLE):
            client = storage.Client(project="emulator")
        else:
            try:
                credentials, project = google.auth.default()
            except DefaultCredentialsError as error:
                file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
                about = f" in GOOGLE_APPLICATION_CREDENTIALS={plain(file)}" if file else ""
                what = f"no usable credentials for Google Cloud were found{about}"
                raise StorageError(what, LOGIN) from error
            client = storage.Client(project=project or "none", credentials=credentials)
    return Connection(client, options or Options(), threading.Event())


class Attempts:
    """Counts the failures of one transfer, and waits between attempts.

    Args:
        connection: Of the transfer.
        what: What fails, for messages: "gs://b/a: reading".
    """

    def __init__(self, connection: Connection, what: str) -> None:
        self._connection = connection
        self._what = what
        self._count = 0

    def progressed(self) -> None:
        """Something has arrived: failures before it no longer count."""
        self._count = 0

    def failed(self, error: BaseException) -> None:
        """Waits before the next attempt.

        Raises:
            StorageError: after the last attempt.
            BaseException: `error` itself, if another attempt cannot help.
            Cancelled: if the transfer is cancelled meanwhile.
        """
        if not is_transient(error):
            raise error
        options = self._connection.options
        self._count += 1
        if self._count >= options.attempts:
            raise StorageError(
                f"{self._what} failed {self._count} times in a row, at last with: {reason(error)}",
                "Check the network and run the command again: it continues where it stopped",
            ) from error
        delay = min(options.first_delay_secs * 2 ** (self._count - 1), options.longest_delay_secs)
        delay *= random.uniform(0.5, 1.0)  # clients that failed together do not retry together
        _LOG.warning(
            "%s failed: %s; attempt %d of %d in %.1f s",
            *(self._what, reason(error), self._count + 1, options.attempts, delay),
        )
        (options.sleep or self._connection.stop.wait)(delay)
        raise_if_cancelled(self._connection)


def raise_if_cancelled(connection: Connection) -> None:
    """Ends a thread whose transfer is cancelled."""
    if connection.stop.is_set():
        raise Cancelled


def call(connection: Connection, path: CloudPath, action: str, request: Callable[[], Any]) -> Any:
    """The result of `request`, which is repeated after failures that may pass.

    Args:
        connection: For the options.
        path: What the request is about.
        action: "read" or "write".
        request: Of Google's library, without retries of its own.

    Raises:
        StorageError: if it is refused or keeps failing.
        MissingError: if there is no bucket to write to.
    """
    attempts = Attempts(connection, f"{path}: {action}")
    while True:
        try:
            return request()
        except Exception as error:
            if (known := explained(error, path, action)) is not None:
                raise known from error
            attempts.failed(error)


class HttpError(Exception):
    """An answer to a request of our own that is no success."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response
        self.code = int(response.status_code)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    import http.client

    import requests
    import urllib3
    from google.auth.exceptions import TransportError

    passing = (
        ConnectionError,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        TransportError,
    )
    is_passing = isinstance(error, passing) or getattr(error, "retryable", False)
    return bool(is_passing) or _code(error) in _TRANSIENT_CODES


def reason(error: BaseException) -> str:
    """What went wrong, without addresses, which may contain an upload session."""
    code = _code(error)
    if code:
        text = _text_of_service(error)
        return f"HTTP {code}{f' ({text})' if text else ''}"
    import requests
    import urllib3

    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return "no answer in time"
    return f"the connection failed ({type(error).__name__})"


def explained(error: BaseException, path: CloudPath, action: str) -> Optional[Exception]:
    """The error for the user where the service or the credentials refuse; None for others."""
    from google.auth.exceptions import GoogleAuthError

    if _UNKNOWN_CERTIFICATE in str(error):
        return StorageError(
            f"{path}: the certificate of the service is not signed by an authority that this "
            "machine trusts, as behind a proxy that decrypts",
            "Set REQUESTS_CA_BUNDLE to the file of your network's certificates, and check the "
            "clock of this machine",
        )
    if isinstance(error, GoogleAuthError) and not is_transient(error):
        return StorageError(
            f"{path}: the credentials for Google Cloud are not valid, or no longer "
            f"({type(error).__name__})",
            LOGIN,
        )
    code = _code(error)
    if code == 401:
        what = f"{path}: the service does not accept the credentials (HTTP 401)"
        return StorageError(what, LOGIN)
    if code == 403:
        text = _text_of_service(error)
        return StorageError(
            f"{path}: no permission to {action} (HTTP 403{f': {text}' if text else ''})",
            "Give your account the role: gcloud storage buckets add-iam-policy-binding "
            f"gs://{path.bucket} --member=user:YOU --role={_ROLES[action]}; or log in as an "
            "account that has it",
        )
    if code == 404 and action == "write":
        return no_bucket(path.bucket)
    return None


def no_bucket(bucket: str) -> MissingError:
    """The error for a bucket that does not exist."""
    return MissingError(
        f"there is no bucket gs://{bucket}",
        "Correct its name (gcloud storage buckets list shows yours), or make it: gcloud storage "
        f"buckets create gs://{bucket} --location=REGION",
    )


def no_file(path: CloudPath, kind: str = "file") -> MissingError:
    """The error for a path that means no file."""
    return MissingError(
        f"{path}: no such {kind}",
        f"Correct the path; gcloud storage ls gs://{path.bucket} lists the bucket",
    )


def _code(error: BaseException) -> int:
    """The HTTP status of an error; 0 for other errors."""
    code = getattr(error, "code", 0)
    return int(code) if isinstance(code, int) else 0


def _text_of_service(error: BaseException) -> str:
    """The message in the answer of the service: it names the account and the missing permission."""
    response = getattr(error, "response", None)
    try:
        found = response.json()["error"]["message"] if response is not None else ""
    except (ValueError, KeyError, TypeError):
        return ""
    return plain(str(found).rstrip("."))
