"""Tables in CSV files, row by row with line numbers."""

from __future__ import annotations

import csv
from typing import Dict, Iterator, Sequence, Tuple

from estimator_det.config.printing import plain
from inputs.datasets.source import SourceError, broken

MAX_LINE = 100_000  # bytes; a longer line is an error


def read_rows(path: str, required: Sequence[str]) -> Iterator[Tuple[int, Dict[str, str]]]:
    """The line and the fields of every row of a file with a header.

    Rows with too few or too many fields come with the field "" that says so.
    """
    rows = csv.reader(_lines(path), strict=True)
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


def _lines(path: str) -> Iterator[str]:
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise broken(path, number, f"more than {MAX_LINE:,} bytes")
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                message = f"byte {line[error.start]:#04x} is not UTF-8"
                raise broken(path, number, message) from None
