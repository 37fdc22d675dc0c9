"""Runs the server until a signal."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any, Callable

import uvicorn

from estimator_det.errors import RunError
from exporters.server.app import Server
from exporters.server.versions import ModelVersions

FOLLOW_SECONDS = 2.0  # between two looks for a new version
_LAST_SECONDS = 30  # that requests have when the server ends
_MOST_CONNECTIONS = 1_000
_POLL_SECONDS = 0.2


def run(
    server: Server, models: ModelVersions, host: str, port: int, announce: Callable[[], None]
) -> None:
    """Answers requests until SIGINT or SIGTERM; those under way are finished.

    The `StopSignals` of a program end it at once by a second signal. Raises RunError if the port is
    not free.

    Args:
        models: The versions of the server, which follow new ones meanwhile.
        announce: Called once the port is open.
    """
    # Before the threads, so that a port that is not free ends the program.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RunError(
            f"port {port} of {host} cannot be opened: {reason}; choose another with --port"
        ) from error
    config = uvicorn.Config(
        server.app(host),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    web = uvicorn.Server(config)
    stop = threading.Event()

    def end(number: int, frame: Any) -> None:
        stop.set()
        web.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    # In a thread, since uvicorn ends the process by the signal that it has received itself.
    answering = threading.Thread(target=web.run, args=([listening],), name="http")
    following = threading.Thread(
        target=models.follow, args=(FOLLOW_SECONDS, stop), name="versions", daemon=True
    )
    following.start()  # first: if it cannot, no thread is left that keeps the process
    answering.start()
    announce()
    while answering.is_alive():  # with a pause, in which Python handles signals
        answering.join(_POLL_SECONDS)
    server.close()
