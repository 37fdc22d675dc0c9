"""The first pass over a data set: finds images, ids, classes, splits and copies, on disk.

The images of a source go through a database, then into one file of descriptions for each shard. A
later process needs only these files. Memory does not grow with the number of images.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
import os
import sqlite3
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from inputs.checks.statistics import Tally, count_faults
from inputs.conversion.splits import Split, SplitLists
from inputs.datasets import grouping
from inputs.datasets.paths import image_status
from inputs.datasets.source import (
    DROPPED,
    KEPT,
    SKIPPED,
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
)

HASHED_AT_ONCE = 1024  # images
READ_AT_ONCE = 2**20  # bytes
TAIL = 4096  # last bytes of a file, which are rarely equal unless the images are copies
MAX_CLASSES = 100_000

_TABLE = """
CREATE TABLE images (
    position INTEGER PRIMARY KEY, image TEXT UNIQUE, source_id TEXT UNIQUE, size INTEGER,
    changed INTEGER, split TEXT, tail TEXT, sha256 TEXT, file TEXT, line INTEGER, text TEXT
)
"""

ReportFault = Callable[[SourceFault, str], None]  # the fault and its action


class Index(NamedTuple):
    """The result of the first pass."""

    database: sqlite3.Connection  # has the images until `write_entries`
    num_images: int  # images that remain
    num_bytes: int  # size of the files of these images
    num_unlisted: int  # images that no list of a split names
    names: Set[str]  # names of classes
    faults: Tally  # counts of the faults in `faults_file`
    dropped: Tally  # faults of objects that are left out of the remaining images


def build(
    source: Source,
    folder: str,
    scratch: str,
    splits: Sequence[Split],
    *,
    duplicates: str,
    faults_file: str,
    advance: Callable[[int], Any] = lambda images: None,
) -> Index:
    """Reads the source, whose images are in `folder`, and prepares `write_entries`.

    `duplicates` is `keep`, `skip` or `stop`, for copies of an image within one split. Faults are
    written to `faults_file`.
    """
    database = grouping.connect(os.path.join(scratch, "index.sqlite"))
    database.execute(_TABLE)
    lists = SplitLists(splits, database)
    names: Set[str] = set()
    unlisted = 0
    faults: Tally = {}
    dropped: Tally = {}
    with open(faults_file, "w", encoding="utf-8") as file:

        def report(fault: SourceFault, action: str = SKIPPED) -> None:
            fault = fault._replace(action=action)
            file.write(json.dumps(fault._asdict()) + "\n")
            count_faults([fault], faults)

        for image in source.images:
            advance(1)
            if not image.image:
                for fault in image.faults:
                    report(fault)
                continue
            try:
                class_names = _class_names(image)
                split = lists.find(image.image, image.source_id)
                if split is None:
                    unlisted += 1
                    continue
                _add(database, image, folder, split)
            except SourceError as error:
                report(error.fault)
                continue
            count_faults((fault._replace(action=DROPPED) for fault in image.faults), dropped)
            names |= class_names
            if len(names) > MAX_CLASSES:
                raise UsageError(
                    f"{image.file}: the source has more than {MAX_CLASSES:,} different classes; "
                    "name the classes that you need with --label_map"
                )
        for fault in lists.unused():
            report(fault)
        _drop_copies(database, folder, duplicates, report)
    count, size = database.execute("SELECT COUNT(*), TOTAL(size) FROM images").fetchone()
    return Index(database, count, int(size), unlisted, names, faults, dropped)


def write_entries(index: Index, files: Sequence[str]) -> None:
    """Writes descriptions of the images in the source's order, the same number to each file."""
    total = index.num_images
    rows = index.database.execute("SELECT split, size, changed, text FROM images ORDER BY position")
    for number, path in enumerate(files):
        count = (number + 1) * total // len(files) - number * total // len(files)
        with open(path, "w", encoding="utf-8") as file:
            for split, size, changed, text in itertools.islice(rows, count):
                file.write(f"[{json.dumps(split)},[{size},{changed}],{text}]\n")
    index.database.close()


def read_entries(path: str) -> Iterator[Tuple[str, AnnotatedImage]]:
    """The images of a file of `write_entries`, each with its split; "" if its content decides."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            split, _, values = json.loads(line)
            image = AnnotatedImage(*values)
            objects = [AnnotatedObject(*each) for each in image.objects]
            faults = [SourceFault(*each) for each in image.faults]
            yield split, image._replace(objects=objects, faults=faults)


def _class_names(image: AnnotatedImage) -> Set[str]:
    """Names of classes; SourceError unless they, and the image's names, are Unicode text."""
    names = {annotated.class_name for annotated in image.objects if annotated.class_name}
    names.update(name for name, _ in image.image_classes)
    names.update(image.absent_classes, image.incomplete_classes)
    try:
        "".join([image.image, image.source_id, *names]).encode()
    except UnicodeEncodeError:  # the source has another encoding
        message = f"a name of image {quoted(image.image)} is not valid Unicode"
        raise SourceError("missing_key", image.file, image.line, message) from None
    return names


def _add(database: sqlite3.Connection, image: AnnotatedImage, folder: str, split: str) -> None:
    status = image_status(folder, image.image, image.file, image.line)
    row = (
        image.image, image.source_id or image.image, status.st_size, status.st_mtime_ns, split,
        image.file, image.line, json.dumps(image, separators=(",", ":")),
    )  # fmt: skip
    try:
        database.execute(
            "INSERT INTO images (image, source_id, size, changed, split, file, line, text) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    except sqlite3.IntegrityError:
        copy = database.execute(
            "SELECT image, source_id, file, line FROM images WHERE image = ? OR source_id = ?",
            row[:2],
        ).fetchone()
        same = f"image {quoted(copy[0])}" if copy[0] == row[0] else f"id {quoted(copy[1])}"
        where = f"{plain(copy[2])}, line {copy[3]}" if copy[3] else plain(copy[2])
        message = f"the {same} is listed before, in {where}"
        raise SourceError("duplicate_id", image.file, image.line, message) from None


def _drop_copies(
    database: sqlite3.Connection, folder: str, duplicates: str, report: ReportFault
) -> None:
    """Reports images with the same content, and removes them unless they are kept.

    Copies have the same size and the same last bytes, so only images that share these are read.
    """
    _add_digests(database, folder, "tail", "size", TAIL)
    _add_digests(database, folder, "sha256", "tail")
    copies = database.execute(
        "SELECT a.position, a.image, a.file, a.line, a.split, b.image, b.split FROM images a JOIN "
        # With MIN, SQLite takes the other columns from the row of the minimum.
        "(SELECT sha256, image, split, MIN(position) AS position FROM images GROUP BY sha256) b "
        "ON a.sha256 = b.sha256 AND a.position > b.position ORDER BY a.position"
    )
    removed: List[Any] = []
    for position, image, file, line, split, first, first_split in copies:
        message = f"the image {quoted(image)} has the content of {quoted(first)}"
        if split != first_split:
            message += f", which is in split {first_split}; this one is in {split}"
        is_kept = duplicates == "keep" and split == first_split
        fault = SourceFault("duplicate_image", file, line, message)
        report(fault, KEPT if is_kept else SKIPPED)
        if not is_kept:
            removed.append((position,))
    database.executemany("DELETE FROM images WHERE position = ?", removed)


def _add_digests(
    database: sqlite3.Connection, folder: str, column: str, shared: str, tail: int = 0
) -> None:
    """Sets a column to the digest of each image that shares its value of another column.

    The digest is of the file, or of its last `tail` bytes; NULL if the file cannot be read, which
    is reported when its record is made.
    """

    def sha256(row: Tuple[int, str]) -> Tuple[Optional[str], int]:
        position, image = row
        digest = hashlib.sha256()
        try:
            with open(os.path.join(folder, image), "rb") as file:
                if tail:
                    file.seek(max(os.fstat(file.fileno()).st_size - tail, 0))
                while part := file.read(READ_AT_ONCE):
                    digest.update(part)
        except OSError:
            return None, position
        return digest.hexdigest(), position

    rows = database.execute(
        f"SELECT position, image FROM images WHERE {shared} IN (SELECT {shared} FROM images "
        f"GROUP BY {shared} HAVING COUNT(*) > 1) ORDER BY position"
    )
    with concurrent.futures.ThreadPoolExecutor() as pool:
        while some := rows.fetchmany(HASHED_AT_ONCE):
            update = f"UPDATE images SET {column} = ? WHERE position = ?"
            database.executemany(update, pool.map(sha256, some))
