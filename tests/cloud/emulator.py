"""gcp-storage-emulator on loopback, with faults between it and the client."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import threading
from typing import Any, Callable, Iterator, List

import pytest

pytest.importorskip("gcp_storage_emulator")  # needs Python 3.10

from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

Fault = Callable[[Any], bool]  # is given the request's handler; whether it has answered


class Emulator:
    """A running emulator.

    Attributes:
        storage: What it stores.
        faults: Each is applied to one request that `when` of it accepts, in order.
        requests: "GET /path" of everything received.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.storage = Storage(use_memory_fs=True, data_dir="/")
        self.faults: List[Any] = []
        self.requests: List[str] = []
        self.released = threading.Event()

    def bucket(self, name: str = "data", location: str = "US-CENTRAL1", **fields: Any) -> None:
        """Makes a bucket."""
        made = buckets.create_bucket(name, self.storage)
        made.update(location=location, **fields)

    def content(self, name: str, bucket: str = "data") -> bytes:
        """The stored bytes of a file."""
        return self.storage.get_file(bucket, name)

    def fail(self, method: str, part: str, fault: Fault, times: int = 1, after: int = 0) -> None:
        """Answers requests with `part` in their line by a fault, after so many good ones."""
        self.faults.append([method, part, fault, times, after])

    def count(self, method: str, part: str = "") -> int:
        """How many such requests have come."""
        return sum(line.startswith(method) and part in line for line in self.requests)

    def answers(self, handler: Any) -> bool:
        """Whether a fault has answered a request."""
        self.requests.append(f"{handler.command} {handler.path}")
        if not _range_fits(handler):
            return status(400, f"wrong Content-Range: {handler.headers['Content-Range']}")(handler)
        for row in self.faults:
            method, part, fault, times, after = row
            if handler.command != method or part not in handler.path or not times:
                continue
            if after:
                row[4] -= 1
                continue
            row[3] -= 1
            return fault(handler)
        return False


class _Handler(RequestHandler):
    disable_nagle_algorithm = True  # Else each answer takes 40 ms.

    def __init__(self, emulator: Emulator, *arguments: Any) -> None:
        self.emulator = emulator
        super().__init__(emulator.storage, *arguments)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("do_"):
            return found
        return lambda: self.emulator.answers(self) or found()


def _range_fits(handler: Any) -> bool:
    """False if Content-Range gives other bytes than the body has, which the service refuses."""
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", handler.headers.get("Content-Range", ""))
    if span is None:
        return True
    first, last, size = map(int, span.groups())
    return last - first + 1 == int(handler.headers["Content-Length"]) and last < size


def _read_body(handler: Any) -> None:
    handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


def status(code: int, message: str = "") -> Fault:
    """The service answers with an error."""

    def fault(handler: Any) -> bool:
        _read_body(handler)
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return fault


def cut(handler: Any) -> bool:
    """The connection ends without an answer, after the request was received."""
    _read_body(handler)
    handler.close_connection = True
    return True


def hang(handler: Any) -> bool:
    """No answer ever comes."""
    _read_body(handler)
    handler.emulator.released.wait()
    handler.close_connection = True
    return True


class _Output:
    """Passes an answer to the client, with its body changed."""

    def __init__(self, output: Any, change: Callable[[bytes], bytes]) -> None:
        self._output, self._change, self._is_body = output, change, False

    def write(self, data: bytes) -> None:
        self._output.write(self._change(data) if self._is_body else data)
        self._is_body = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def half(handler: Any) -> bool:
    """The connection ends in the middle of the content."""
    handler.wfile = _Output(handler.wfile, lambda data: data[: len(data) // 2])
    handler.close_connection = True
    return False


def corrupt(handler: Any) -> bool:
    """One bit of the content flips."""
    handler.wfile = _Output(handler.wfile, lambda data: bytes([data[0] ^ 1]) + data[1:])
    return False


@contextlib.contextmanager
def running() -> Iterator[Emulator]:
    """An emulator on a free port of this machine."""
    emulator = Emulator("")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Handler, emulator)
    )
    server.daemon_threads = True
    emulator.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield emulator
    finally:
        emulator.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
