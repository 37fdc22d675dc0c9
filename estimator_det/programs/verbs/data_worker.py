"""`estimator-det data-worker`: reads and augments records for trainings on other machines."""

from __future__ import annotations

import argparse
import socket
import time
from typing import Any, NoReturn

from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options
from model_fn.runs.options import check_address

SUMMARY = "Reads and augments records for trainings that run with --tf_data_service"
EXAMPLE = "--port 5050"

_POLL_SECS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "where this process listens: as the dispatcher, whose address --tf_data_service takes, or "
        "as a further worker (default: %(default)s)"
    )
    add_options(parser, int, {"--port": text}, default=5050)
    text = "host:port of the first data worker, which this one joins"
    add_options(parser, str, {"--dispatcher HOST:PORT": text})
    text = "name of this machine for the others (default: its host name)"
    add_options(parser, str, {"--host": text}, default="")


def run(options: argparse.Namespace) -> NoReturn:
    """Runs the verb until a signal ends it."""
    if not 0 < options.port < 65536:
        raise UsageError(f"--port is {options.port}: give 1 to 65535")
    host = options.host or socket.gethostname()
    dispatcher = options.dispatcher and check_address("--dispatcher", options.dispatcher)
    from estimator_det.compat import tf

    service = tf.data.experimental.service
    servers: Any = []  # They end with their Python objects.
    try:
        if dispatcher:
            config = service.WorkerConfig(
                dispatcher, worker_address=f"{host}:{options.port}", port=options.port
            )
        else:
            dispatcher = f"{host}:{options.port}"
            servers.append(service.DispatchServer(service.DispatcherConfig(port=options.port)))
            config = service.WorkerConfig(
                f"localhost:{options.port}", worker_address=f"{host}:%port%"
            )
        servers.append(service.WorkerServer(config))
    except tf.errors.OpError as error:
        raise UsageError(
            f"no server can listen on port {options.port}: {error.message}. Give another --port, "
            "or end the process that uses it"
        ) from error
    console.print_line(f"data worker of {dispatcher}; train with --tf_data_service {dispatcher}")
    while True:  # A signal raises an exception here.
        time.sleep(_POLL_SECS)
