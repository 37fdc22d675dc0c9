"""`estimator-det serve`: answers HTTP requests with a detector, and shows a page to try it."""

from __future__ import annotations

import argparse
import importlib.util
import re

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options, run_folder
from inputs.machine import available_cpus

SUMMARY = "Serves a detector over HTTP, with a page to try it on photos"
EXAMPLE = "exported --port 8501"
_PACKAGES = ("starlette", "uvicorn", "prometheus_client", "python_multipart")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="EXPORT",
        help="an export of any format, a folder of numbered versions, or the folder of a run or "
        "project, of which the best export is served",
    )
    text = (
        "instead: a model of TensorFlow Serving's interface, e.g. http://host:8501/v1/models/NAME"
    )
    add_options(parser, str, {"--backend URL": text})
    text = "label map of the --backend, which has none"
    add_options(parser, str, {"--label_map FILE": text})
    text = "name of the model, in the paths of requests (default: %(default)s)"
    add_options(parser, _name, {"--name": text}, default="detector")
    text = "address to listen on; 0.0.0.0 for other machines, too (default: %(default)s)"
    add_options(parser, str, {"--host ADDRESS": text}, default="127.0.0.1")
    add_options(parser, str, {"--token TEXT": "refuse requests without this bearer token"})
    for option, default, text in (
        ("--port", 8501, "port to listen on"),
        ("--max_batch", 8, "images that run at once at most"),
        ("--max_wait_ms", 5, "milliseconds that an image waits for others"),
        ("--max_queue", 64, "requests under way at once; further ones get status 503"),
        ("--threads", available_cpus(), "images that are decoded at once"),
        ("--max_megapixels", 24, "the largest image"),
        ("--max_mib", 16, "the largest request"),
    ):
        add_options(
            parser, _count, {f"{option} N": f"{text} (default: %(default)s)"}, default=default
        )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 65535")
    return int(text)


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: give letters, digits, '.', '_' and '-'")
    return text


def run(options: argparse.Namespace) -> int:
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageError(
            f"serve needs {', '.join(missing)}; run pip install 'estimator-det[serve]'"
        )
    if bool(options.model) == bool(options.backend):
        raise UsageError("give either EXPORT or --backend URL")
    if options.label_map and options.model:
        raise UsageError("--label_map is for a --backend: an export has its own; remove it")
    from exporters import Detector
    from exporters.loaded_model import read_class_names
    from exporters.server.app import LOOPBACK, Limits, Server
    from exporters.server.backend import RemoteModel
    from exporters.server.batching import Batcher
    from exporters.server.metrics import ServerCounters
    from exporters.server.run import run as run_server
    from exporters.server.versions import ModelVersions

    metrics = ServerCounters()

    def make_batcher(detector: Detector) -> Batcher:
        wait = options.max_wait_ms / 1000
        return Batcher(detector, options.max_batch, wait, metrics.batches.observe)

    def load(path: str) -> Detector:
        if options.backend:
            return Detector(RemoteModel(options.backend, read_class_names(options.label_map)))
        return Detector(path)

    path = run_folder(options.model) if options.model else ""
    models = ModelVersions(path, make_batcher, load)
    limits = Limits(options.max_queue, options.max_mib << 20, options.max_megapixels * 1_000_000)
    server = Server(
        options.name, models, metrics, limits, threads=options.threads, token=options.token or ""
    )

    def announce() -> None:
        here = f"http://{options.host}:{options.port}"
        console.print_line(
            f"serving {printing.plain(models.current.detector.model.path)}, version "
            f"{models.current.number}: page {here}/, requests {here}/v1/models/{options.name}"
        )
        if options.host in LOOPBACK:
            console.print_line("only this machine can reach it; --host 0.0.0.0 lets others in")
        elif not options.token:
            console.print_line("everybody who can reach this machine may use it; --token TEXT asks")

    run_server(server, models, options.host, options.port, announce)
    console.print_line("all requests are answered; the server has ended")
    return console.EXIT_OK
