"""`estimator-det sync`: copies between local folders and Cloud Storage."""

from __future__ import annotations

import argparse

from estimator_det.programs import console

SUMMARY = "Copies files to or from Cloud Storage, also of a running training"
EXAMPLE = "gs://my-bucket/run run --follow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="one source or more, then the destination, a folder: either sources or destination "
        "are gs://BUCKET/NAME. Of a source that is a folder, the contents are copied; sources in "
        "Cloud Storage may contain *, ? and […]",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files with such a name, or path below a source, e.g. 'model.ckpt-*'; may "
        "be repeated",
    )
    parser.add_argument(
        "--threads", type=int, default=8, help="files at once (default: %(default)s)"
    )
    following = parser.add_argument_group("downloads of a running training")
    following.add_argument(
        "--follow", action="store_true", help="continue to download what is new, until Ctrl-C"
    )
    following.add_argument(
        "--interval_secs",
        type=float,
        help="with --follow: seconds between two copies; default: 30",
    )
    following.add_argument(
        "--timeout_secs",
        type=float,
        help="with --follow: end after this time without anything new; default: never",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    from estimator_det.programs.cloud import following, storage

    *sources, destination = options.paths
    if not sources:
        raise console.UsageError("give one source or more, and a destination")
    if options.threads < 1:
        raise console.UsageError(f"--threads is {options.threads}: give 1 or more")
    for name in ("interval_secs", "timeout_secs"):
        value = getattr(options, name)
        if value is not None and not options.follow:
            raise console.UsageError(f"--{name} requires --follow: add it, or remove --{name}")
        if value is not None and not value > 0:
            raise console.UsageError(f"--{name} is {value:g}: give a number above 0")
    downloads = storage.check_direction(sources, destination)
    settings = storage.Options(threads=options.threads)
    if options.follow:
        if not downloads:
            raise console.UsageError("--follow is for downloads: give gs:// sources, or remove it")
        following.follow(
            sources,
            destination,
            exclude=options.exclude,
            interval_secs=options.interval_secs or following.INTERVAL_SECS,
            timeout_secs=options.timeout_secs,
            options=settings,
        )
        return console.EXIT_OK
    copy = storage.download if downloads else storage.upload
    done = copy(sources, destination, exclude=options.exclude, options=settings)
    console.print_line(
        f"copied to {destination}: {done.files} ({done.size / 1e6:.1f} MB); already there: "
        f"{done.same}"
    )
    return console.EXIT_OK
