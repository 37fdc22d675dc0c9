"""Clients of a server that cost little, and requests with random damage."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import threading
from typing import Callable, Optional, Tuple

HOST = "127.0.0.1"
ANSWER_SECONDS = 120
WAIT_SECONDS = 2.0  # for an answer to a damaged request
# The server has closed a connection that was open: HTTP clients ask once more.
CLOSED = (BrokenPipeError, ConnectionResetError)


def http_request(path: str, body: bytes = b"", method: str = "POST", fields: str = "") -> bytes:
    """A whole request."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: Optional[socket.socket] = None

    def ask(self, request: bytes) -> Tuple[int, bytes]:
        """Status and body of an answer; ConnectionRefusedError once the server has ended."""
        is_fresh = self._socket is None
        try:
            return self._answer(request)
        except CLOSED:
            self._socket = None
            if is_fresh:
                raise
        return self._answer(request)

    def _answer(self, request: bytes) -> Tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), ANSWER_SECONDS)
        self._socket.sendall(request)
        head, _, body = self._received(b"").partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[16:]) for line in lines if line.startswith(b"content-length: "))
        while len(body) < length:
            body = self._received(body)
        if b"connection: close" in lines:
            self._socket = None
        return int(head.split()[1]), body

    def _received(self, before: bytes) -> bytes:
        assert self._socket is not None
        part = self._socket.recv(1 << 20)
        if not part:
            raise ConnectionResetError("closed")
        return before + part


def load(port: int, count: int, work: Callable[[Client, int], None]) -> None:
    """Runs `work(client, its number)` in threads until all have ended."""
    threads = [threading.Thread(target=work, args=(Client(port), i)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def status_of(port: int, request: bytes) -> str:
    """The status of the answer to any bytes; "none" if the server waits for more, or closes."""
    connection = socket.create_connection((HOST, port), ANSWER_SECONDS)
    words = []
    with connection, contextlib.suppress(*CLOSED, TimeoutError):
        connection.sendall(request)
        connection.settimeout(WAIT_SECONDS)
        words = connection.recv(1 << 10).split()
    return words[1].decode() if len(words) > 1 else "none"


def mutated(photo: bytes, chance: random.Random) -> bytes:
    """A request with damage to its header, to its body, or to both."""
    image = {"b64": base64.b64encode(photo).decode()}
    name = b'Content-Disposition: form-data; name="file"; filename="a.jpg"'
    form = b"--b\r\n%s\r\n\r\n%s\r\n--b--\r\n" % (name, photo)
    predict = "/v1/models/detector:predict"
    path, body, fields = chance.choice(
        [
            ("/v1/detect?threshold=0.1&classes=1", photo, ""),
            ("/v1/detect", form, "Content-Type: multipart/form-data; boundary=b\r\n"),
            (predict, json.dumps({"instances": [image]}).encode(), ""),
            (predict, json.dumps({"inputs": [[[[1, 2, 3]]]]}).encode(), ""),
            ("/v1/models/detector/versions/1/metadata", b"", ""),
        ]
    )
    kind = chance.randrange(3)
    body = _damaged(body, chance) if kind != 1 else body
    head = http_request(path, body, fields=fields)[: -len(body) or None]
    return (_damaged(head, chance) if kind else head) + body


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """One to four pieces are cut, repeated or replaced."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = start + chance.randrange(9)
        middle = chance.choice([b"", data[start:end] * 2, chance.randbytes(end - start), b"9" * 40])
        data = data[:start] + middle + data[end:]
    return data
