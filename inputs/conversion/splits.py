"""Parts of a data set, such as train and val: by ratio, or by lists of images."""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError
from inputs.datasets.paths import read_lines, require_file
from inputs.datasets.source import SourceFault

DEFAULT_NAMES = ("train", "val", "test")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
LONGEST_LINE = 4096  # bytes in a line of a list; the longest path of a file


class Split(NamedTuple):
    """One part; a part without share and list contains all images that no list names."""

    name: str
    share: float = 0.0
    list_file: str = ""


def parse_splits(text: str) -> Tuple[Split, ...]:
    """Parts from a name, ratios or lists, such as `train,val=val.txt` or `train=0.8,val=0.2`."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and _NAME.fullmatch(parts[0]) and not _share(parts[0]):
        return (Split(parts[0]),)
    splits = [_split(part, index) for index, part in enumerate(parts)]
    names = [split.name for split in splits]
    shares = [split.share for split in splits if split.share]
    total = sum(shares)
    num_open = sum(not (split.share or split.list_file) for split in splits)
    for is_wrong, problem in (
        (len(set(names)) < len(names), "a name is given twice"),
        (num_open > 1, "only one part can take the images of no list"),
        (0 < len(shares) < len(splits), "give a ratio to every part, or a list to each"),
        (shares and abs(total - 1) > 1e-6, f"the ratios add up to {total:.6g}, not to 1"),
    ):
        if is_wrong:
            raise UsageError(f"--split {quoted(text)}: {problem}")
    for split in splits:
        if split.list_file:
            require_file(split.list_file, f"the list of --split {split.name}")
    return tuple(splits)


def _split(text: str, index: int) -> Split:
    name, equals, value = text.partition("=")
    # A file may be named train; then it is a list.
    if not equals and text in DEFAULT_NAMES and not os.path.exists(text):
        return Split(text)
    if not equals:
        if index >= len(DEFAULT_NAMES):
            raise UsageError(f"--split: part {index + 1} has no name; write NAME={text}")
        name, value = DEFAULT_NAMES[index], text
    if not _NAME.fullmatch(name):
        raise UsageError(f"--split: {quoted(name)} is not a name for files; use letters and digits")
    share = _share(value)
    if share is None:
        return Split(name, list_file=value)
    if not 0 < share <= 1:
        raise UsageError(f"--split: the ratio of {name} is {value}; allowed: above 0, at most 1")
    return Split(name, share)


def _share(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:  # the name of a list
        return None


def split_of(sha256: str, splits: Sequence[Split]) -> str:
    """The part of an image by ratio; it follows from its content, so that copies stay together."""
    place = int(sha256[:13], 16) / 16**13
    for split in splits[:-1]:
        if place < split.share:
            return split.name
        place -= split.share
    return splits[-1].name


class SplitLists:
    """The split of each image, by the lists of images, which a database holds."""

    def __init__(self, splits: Sequence[Split], database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE lists (name TEXT PRIMARY KEY, split TEXT, file TEXT, line INTEGER, "
            "used INTEGER DEFAULT 0) WITHOUT ROWID"
        )
        # The split of an image that no list names, None without one; "" if its content decides.
        rest = [split for split in splits if not split.list_file]
        self._rest = (rest[0].name if not rest[0].share else "") if rest else None
        for split in splits:
            for line, name in _lines(split.list_file) if split.list_file else ():
                self._add(name, split, line)

    def _add(self, name: str, split: Split, line: int) -> None:
        self._database.execute(
            "INSERT OR IGNORE INTO lists (name, split, file, line) VALUES (?, ?, ?, ?)",
            (name, split.name, split.list_file, line),
        )
        first, file, first_line = self._database.execute(
            "SELECT split, file, line FROM lists WHERE name = ?", (name,)
        ).fetchone()
        if first != split.name:
            raise UsageError(
                f"{split.list_file}, line {line}: the image {quoted(name)} is also in split "
                f"{first} ({file}, line {first_line}); an image belongs to one split"
            )

    def find(self, image: str, source_id: str) -> Optional[str]:
        """The split of an image; "" if its content decides, None if it is in no split."""
        base = os.path.basename(image)
        stem = os.path.splitext(base)[0]
        # Lists of PASCAL VOC and labelImg may name the annotation.
        names = (image, base, source_id, os.path.splitext(image)[0], stem, f"{stem}.xml")
        is_named = "name IN (?, ?, ?, ?, ?, ?)"
        rows = self._database.execute(f"SELECT split, name FROM lists WHERE {is_named}", names)
        splits = dict(rows.fetchall())
        if splits:
            self._database.execute(f"UPDATE lists SET used = 1 WHERE {is_named}", names)
        if len(splits) > 1:
            raise UsageError(f"the image {quoted(image)} is in several splits: {splits}")
        return next(iter(splits), self._rest)

    def unused(self) -> Iterator[SourceFault]:
        """A fault for each line that names no image."""
        for name, file, line in self._database.execute(
            "SELECT name, file, line FROM lists WHERE used = 0 ORDER BY file, line"
        ):
            yield SourceFault("no_split", file, line, f"the line is {quoted(name)}")


def _lines(path: str) -> Iterator[Tuple[int, str]]:
    """Lines with text; of several words, as in lists of PASCAL VOC, the first.

    A name with a space is kept whole if the line has no other word of -1, 0 or 1.
    """
    for number, line in read_lines(path, LONGEST_LINE, errors="replace"):
        name = re.sub(r"\s+(-1|0|1)$", "", line.strip())
        if name:
            yield number, name
