"""`estimator-det sync`: copies between local folders and Cloud Storage."""

from __future__ import annotations

import argparse
import os

from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import above_zero, add_options, positive

SUMMARY = "Copies files to or from Cloud Storage, also of a running training"
EXAMPLE = "gs://my-bucket/run run --follow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="one source or more, then the destination, a folder: either sources or destination "
        "are gs://BUCKET/NAME. Of a source that is a folder, the contents are copied; sources in "
        "Cloud Storage may contain *, ? and […]",
    )
    text = (
        "leave out files with such a name, or path below a source, e.g. 'model.ckpt-*'; may be "
        "repeated"
    )
    add_options(parser, str, {"--exclude PATTERN": text}, action="append", default=[])
    add_options(parser, positive, {"--threads": "files at once (default: %(default)s)"}, default=8)
    group = parser.add_argument_group("downloads of a running training")
    add_options(group, bool, {"--follow": "continue to download what is new, until Ctrl-C"})
    texts = {
        "--interval_secs": "with --follow: seconds between two copies (default: 30)",
        "--timeout_secs": "with --follow: end after this time without new files (default: never)",
    }
    add_options(group, above_zero, texts)


def run(options: argparse.Namespace) -> None:
    from estimator_det.programs.cloud import storage

    *sources, destination = options.paths
    if not sources:
        raise UsageError("give one source or more, and a destination")
    for name in ("interval_secs", "timeout_secs"):
        if getattr(options, name) is not None and not options.follow:
            raise UsageError(f"--{name} requires --follow: add it, or remove --{name}")
    downloads = storage.check_direction(sources, destination)
    if downloads and os.path.isfile(destination):
        raise UsageError(f"{destination} is a file; give a folder as the destination")
    if options.follow:
        if not downloads:
            raise UsageError("--follow is for downloads: give gs:// sources, or remove it")
        num_files = storage.follow(
            sources,
            destination,
            exclude=options.exclude,
            interval_secs=options.interval_secs or storage.FOLLOW_SECS,
            timeout_secs=options.timeout_secs,
            threads=options.threads,
        )
        console.report_result({"destination": destination, "files": num_files})
        return
    copy = storage.download if downloads else storage.upload
    done = copy(sources, destination, exclude=options.exclude, threads=options.threads)
    console.print_line(
        f"copied to {destination}: {done.files} ({done.size / 1e6:.1f} MB); already there: "
        f"{done.same}"
    )
    console.report_result({"destination": destination, **done._asdict()})
