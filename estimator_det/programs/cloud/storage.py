"""Copies between local folders and Cloud Storage: parallel, checked by CRC32C.

    uploaded = storage.upload(["records", "label_map.pbtxt"], "gs://bucket/data")
    storage.download(["gs://bucket/run"], "run")

Both copy only what differs in size or checksum. Files that name others are copied after them, so
that a reader never finds a `checkpoint` file before its checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import fnmatch
import itertools
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.console.bars import progress_bar
from estimator_det.console.printing import quoted
from estimator_det.errors import NotInStorageError, StorageError, UsageError
from estimator_det.files import ownership, special_kind
from estimator_det.programs.cloud.connection import THREADS, Cancelled, Connection, connect, no_file
from estimator_det.programs.cloud.paths import SCHEME, CloudPath, is_cloud, parse
from estimator_det.programs.cloud.transfers import (
    Advance,
    download_file,
    is_same,
    path_of,
    upload_file,
)

# Never copied: the lock of a running training, the mark of a download, and what an interrupted
# write or download leaves, of this package, of TensorFlow's savers and of its
# `atomic_write_string_to_file`.
NEVER = (
    "training.lock",
    ownership.marker("sync"),
    "*.tmp-[0-9]*",
    "estimator-det-write-check.*",
    "*_temp/part-*",
    "*.tempstate[0-9]*",
    f"*.tmp{'[0-9a-f]' * 32}",
)
# Name others, which must be there first: these last, in this order.
_LAST = ("*.index", "saved_model.pb", "checkpoint")
_PASSES = 3
FOLLOW_SECS = 30.0  # between two copies of a folder that is followed

_LOG = logging.getLogger(__name__)


class Copied(NamedTuple):
    """Result of a copy."""

    files: int  # copied
    size: int  # their bytes
    same: int  # files that were there already


def upload(
    sources: Sequence[str], destination: str, *, exclude: Sequence[str] = (), threads: int = THREADS
) -> Copied:
    """Uploads files, and the contents of folders, into a folder of a bucket.

    Args:
        destination: gs://bucket/folder; made as it is needed.
        exclude: Patterns of names, or of paths below a source, that are left out.
        threads: Files at once.
    """
    folder = parse(destination)
    local_files = _local_files(sources, exclude)
    connection = connect(threads)
    # One listing instead of a request for each file.
    blobs = connection.list_blobs(CloudPath(folder.bucket, folder.folder))
    stored = {blob.name: blob for blob in blobs}

    def is_stored(name: str, local: str) -> bool:
        target = folder.join(name).name
        return target in stored and is_same(local, stored[target])

    def transfer(name: str, advance: Advance) -> None:
        upload_file(connection, local_files[name], folder.join(name), advance)

    new = {name: local for name, local in local_files.items() if not is_stored(name, local)}
    sizes = {name: os.path.getsize(local) for name, local in new.items()}
    run_all(connection, sizes, transfer, "uploading")
    return Copied(len(new), sum(sizes.values()), len(local_files) - len(new))


def download(
    sources: Sequence[str], folder: str, *, exclude: Sequence[str] = (), threads: int = THREADS
) -> Copied:
    """Downloads files, folders' contents and patterns, gs://bucket/name, into a local folder.

    A file that is deleted or replaced meanwhile is listed again, as in the folder of a running
    training. `exclude` and `threads` are as for `upload`.
    """
    parsed = [parse(source) for source in sources]
    connection = connect(threads)
    files = size = 0
    for _ in range(_PASSES):
        wanted = remote_files(connection, parsed, exclude)
        done, deleted = fetch(connection, wanted, folder)
        files, size = files + done.files, size + done.size
        # Files were replaced while they were copied: list and copy the difference again.
        if not deleted:
            return Copied(files, size, done.same)
    raise StorageError(
        f"{sources[0]}: files are replaced faster than they can be copied, at last {deleted[0]}",
        "Give --follow for the folder of a running training",
    )


def follow(
    sources: Sequence[str],
    folder: str,
    *,
    exclude: Sequence[str] = (),
    interval_secs: float = FOLLOW_SECS,
    timeout_secs: Optional[float] = None,
    threads: int = THREADS,
) -> int:
    """Downloads again and again what has changed, until it is interrupted or nothing new comes.

    Like `download`, but the sources may be empty at first. Local files stay when the training
    deletes theirs. Returns how many files were downloaded.

    Args:
        interval_secs: From the end of a copy to the next listing.
        timeout_secs: Ends after this time without anything new; None for never.
    """
    parsed = [parse(source) for source in sources]
    connection = connect(threads)
    generations: Dict[str, int] = {}  # generation of each local copy by path below the folder
    last_change = time.monotonic()
    while True:
        listed = remote_files(connection, parsed, exclude, may_be_empty=True)
        new = {below: b for below, b in listed.items() if generations.get(below) != b.generation}
        if not generations and not listed:
            _LOG.info("%s: nothing there yet", ", ".join(sources))
        if new:
            last_change = time.monotonic()
            listed_generations = {below: blob.generation for below, blob in new.items()}
            copied, deleted = fetch(connection, new, folder)
            if deleted:  # The next listing shows what became of them.
                _LOG.info("%s was deleted or replaced while it was copied", deleted[0])
            else:
                generations.update(listed_generations)
            _LOG.info(
                "%d files copied, %.1f MB; %d unchanged",
                *(copied.files, copied.size / 1e6, copied.same),
            )
        if timeout_secs is not None and time.monotonic() - last_change >= timeout_secs:
            _LOG.info("nothing new for %g s: done", timeout_secs)
            return len(generations)
        time.sleep(interval_secs)


def remote_files(
    connection: Connection,
    sources: Sequence[CloudPath],
    exclude: Sequence[str],
    *,
    may_be_empty: bool = False,
) -> Dict[str, Any]:
    """Path below the local folder -> Google's object for the file, of all sources."""
    files: Dict[str, Any] = {}
    for source in sources:
        blobs = connection.list_blobs(source)
        if not blobs and not may_be_empty:
            raise no_file(source, "file or folder")
        for blob in blobs:
            is_inside = not source.is_pattern and blob.name != source.name
            below = blob.name[len(source.folder) :] if is_inside else blob.name.rpartition("/")[2]
            if _matches(below, (*NEVER, *exclude)):
                continue
            # Names in a bucket are free text, and must not lead out of the folder.
            if ".." in below.split("/") or os.path.isabs(below):
                raise StorageError(
                    f"{path_of(blob)}: the name leaves the local folder",
                    "Rename the file in the bucket, or give --exclude for it",
                )
            _add(files, below, blob)
    return files


def fetch(connection: Connection, blobs: Dict[str, Any], folder: str) -> Tuple[Copied, List[str]]:
    """Downloads what differs; also returns the paths that were deleted or replaced meanwhile.

    If there are any, files that name others are left as they are.
    """
    deleted: List[str] = []
    copied: List[int] = []  # sizes

    def transfer(below: str, advance: Advance) -> None:
        # A `checkpoint` file must not name a checkpoint whose files have gone.
        if deleted and _rank(below):
            return
        try:
            download_file(connection, blobs[below], os.path.join(folder, below), advance)
            copied.append(sizes[below])
        except NotInStorageError:
            deleted.append(str(path_of(blobs[below])))

    sizes = {
        below: blob.size
        for below, blob in blobs.items()
        if not is_same(os.path.join(folder, below), blob)
    }
    if sizes:
        ownership.check_files(folder, "sync", sizes)
        ownership.mark(folder, "sync")
    run_all(connection, sizes, transfer, "downloading")
    same = len(blobs) - len(sizes)
    return Copied(len(copied), sum(copied), same), deleted


def run_all(
    connection: Connection,
    sizes: Dict[str, int],
    transfer: Callable[[str, Advance], None],
    title: str,
) -> None:
    """Transfers the files of these names and bytes in threads, those that name others last."""
    size = sum(sizes.values())
    lock = threading.Lock()
    with (
        progress_bar(title, size, "bytes", shown=size > 0) as update,
        concurrent.futures.ThreadPoolExecutor(connection.threads) as pool,
    ):

        def advance(count: int) -> None:
            if connection.stop.is_set():
                raise Cancelled
            with lock:
                update(count)

        try:
            # All files of one rank are complete before those that name them begin.
            for _, names in itertools.groupby(sorted(sizes, key=_rank), _rank):
                futures = [pool.submit(transfer, name, advance) for name in names]
                for future in concurrent.futures.as_completed(futures):
                    future.result()
        # A signal, too. Google's `transfer_manager` first copies all files in its queue: it waited
        # 8 s after an interrupt, 11 s after a refused file, of 80 that took 1 s in 8 threads.
        except BaseException:
            connection.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _rank(name: str) -> int:
    """0 for most files; those that name others come later."""
    base = name.rpartition("/")[2]
    matching = (rank for rank, pattern in enumerate(_LAST, 1) if fnmatch.fnmatchcase(base, pattern))
    return next(matching, 0)


def _local_files(sources: Sequence[str], exclude: Sequence[str]) -> Dict[str, str]:
    """Name below the destination -> local path, of all sources."""
    files_by_name: Dict[str, str] = {}
    for source in sources:
        for below, path in _files_of(source):
            if _matches(below, exclude):
                continue
            if _matches(below, NEVER):
                _LOG.info("%s is left out: a lock, or what an unfinished write leaves", path)
                continue
            if kind := special_kind(path):
                raise UsageError(f"{path} is {kind}, not a file: move it, or give --exclude for it")
            _add(files_by_name, below, path)
    return files_by_name


def _files_of(source: str) -> Iterator[Tuple[str, str]]:
    """(name below the destination, path) of a file, or of each file in a folder.

    Links to folders are followed, as links to files are.
    """
    if not os.path.exists(source):
        raise FileNotFoundError(f"{source}: no such file or folder")
    if not os.path.isdir(source):
        yield os.path.basename(source), source
        return
    for folder, inside, names in os.walk(source, onerror=_raise, followlinks=True):
        here = os.path.join(os.path.realpath(folder), "")
        for name in inside:
            path = os.path.join(folder, name)
            if os.path.islink(path) and here.startswith(os.path.join(os.path.realpath(path), "")):
                raise UsageError(f"{path} is a link to a folder that contains it: remove the link")
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, source).replace(os.sep, "/"), path


def _raise(error: OSError) -> None:
    raise error


def _matches(name: str, patterns: Sequence[str]) -> bool:
    base = name.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(base, pattern) or fnmatch.fnmatchcase(name, pattern)
        for pattern in patterns
    )


def _add(files_by_name: Dict[str, Any], name: str, path: Any) -> None:
    if name in files_by_name:
        raise UsageError(
            f"two sources have a file {quoted(name)}: copy them to different destinations"
        )
    files_by_name[name] = path


def check_direction(sources: Sequence[str], destination: str) -> bool:
    """True if a copy downloads; raises a UsageError if it does neither that nor upload."""
    remote = [is_cloud(source) for source in sources]
    if all(remote) and not is_cloud(destination):
        return True
    if not any(remote) and is_cloud(destination):
        return False
    raise UsageError(
        f"give local sources and a {SCHEME}… destination, or {SCHEME}… sources and a local "
        f"destination; given {' '.join(map(quoted, sources))} and {quoted(destination)}"
    )
