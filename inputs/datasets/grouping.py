"""Collects the parts of each image on disk; a source may list them in any order."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from estimator_det.console.printing import plain
from inputs.datasets.paths import read_lines
from inputs.datasets.source import SourceError, broken

CACHE_KIBIBYTES = 8 * 1024
MAX_LINE = 100_000  # bytes of a line of CSV; a longer line is an error


class Part(NamedTuple):
    """A piece of an image's annotation."""

    table: str
    line: int
    value: Any  # a value of JSON


def connect(path: str) -> sqlite3.Connection:
    """A new database for temporary data: quick, and lost after a crash.

    With path "", SQLite uses a temporary file without a name.
    """
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE; "
        f"PRAGMA cache_size = -{CACHE_KIBIBYTES}; BEGIN"
    )
    return database


class Groups:
    """Parts by a key, such as the id of an image, in a file of `folder` ("": without name)."""

    def __init__(self, folder: str) -> None:
        self._database = connect(os.path.join(folder, "groups.sqlite") if folder else "")
        self._database.execute(
            "CREATE TABLE parts (number INTEGER PRIMARY KEY, key TEXT, source TEXT, line INTEGER, "
            "value TEXT)"
        )

    def add(self, key: Any, table: str, line: int, text: str) -> None:
        """Adds a part with its value as JSON; keys are equal if their JSON is."""
        self._database.execute(
            "INSERT INTO parts (key, source, line, value) VALUES (?, ?, ?, ?)",
            (json.dumps(key), table, line, text),
        )

    def add_rows(self, path: str, key: str, table: str, required: Sequence[str]) -> None:
        """Adds the rows of a CSV file with a header by the field `key`.

        The field "" of a row with too few or too many fields says so.
        """
        for line, row in _read_rows(path, required):
            self.add(row.get(key, ""), table, line, json.dumps(row))

    def finish(self) -> None:
        """Call it once, after the last `add`."""
        self._database.execute("CREATE INDEX by_key ON parts (key)")
        self._database.execute("COMMIT")

    def take(self, key: Any) -> List[Part]:
        """The parts of a key in the order in which they were added."""
        rows = self._database.execute(
            "SELECT source, line, value FROM parts WHERE key = ? ORDER BY number",
            (json.dumps(key),),
        )
        return [Part(table, line, json.loads(value)) for table, line, value in rows]

    def table_parts(self, table: str, without: str = "") -> Iterator[Part]:
        """Parts of a table whose key is None or not in table `without`, in the order of `add`."""
        cursor = self._database.cursor()
        for line, value in cursor.execute(
            "SELECT line, value FROM parts WHERE source = ? AND (key = 'null' OR key NOT IN "
            "(SELECT key FROM parts WHERE source = ?)) ORDER BY number",
            (table, without),
        ):
            yield Part(table, line, json.loads(value))

    def all(self) -> Iterator[Tuple[Any, List[Part]]]:
        """Every key with its parts, in the order of the keys' first parts; closes afterwards."""
        cursor = self._database.cursor()
        for (key,) in cursor.execute("SELECT key FROM parts GROUP BY key ORDER BY MIN(number)"):
            yield json.loads(key), self.take(json.loads(key))
        self.close()

    def close(self) -> None:
        """Call it when all parts are read; the folder keeps the file."""
        self._database.close()


def _read_rows(path: str, required: Sequence[str]) -> Iterator[Tuple[int, Dict[str, str]]]:
    rows = csv.reader((line for _, line in read_lines(path, MAX_LINE)), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [name for name in required if name not in header]
        if missing:
            message = f"the header has no column {', '.join(missing)}; it has {plain(header)}"
            raise SourceError("missing_key", path, 1, message)
        for row in rows:
            if not row:
                continue
            fields = dict(zip(header, row))
            if len(row) != len(header):
                fields[""] = f"{len(row)} fields; the header has {len(header)}"
            yield rows.line_num, fields
    except csv.Error as error:
        raise broken(path, rows.line_num, f"not valid CSV: {error}") from None
