"""Tables in CSV files, row by row with line numbers."""

from __future__ import annotations

import csv
from typing import Dict, Iterator, Sequence, Tuple

from estimator_det.config.printing import plain
from inputs.datasets.source import SourceError, broken

MAX_FIELD = 100_000  # characters; a longer field is an error


def read_rows(path: str, required: Sequence[str]) -> Iterator[Tuple[int, Dict[str, str]]]:
    """The line and the fields of every row of a file with a header.

    Rows with too few or too many fields come with the field "" that says so.

    Raises:
        SourceError: if the header lacks a required name, or the rest of the file cannot be read.
    """
    csv.field_size_limit(MAX_FIELD)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        try:
            header = [name.strip() for name in next(rows, [])]
            missing = [name for name in required if name not in header]
            if missing:
                raise SourceError(
                    "missing_key", path, 1,
                    f"the header has no column {', '.join(missing)}; it has {plain(header)}",
                )  # fmt: skip
            for row in rows:
                if not row:
                    continue
                fields = dict(zip(header, row))
                if len(row) != len(header):
                    fields[""] = f"{len(row)} fields; the header has {len(header)}"
                yield rows.line_num, fields
        except csv.Error as error:
            raise broken(path, rows.line_num, f"not valid CSV: {error}") from None
        except UnicodeDecodeError as error:
            message = f"byte {error.object[error.start]:#04x} is not UTF-8"
            raise broken(path, rows.line_num + 1, message) from None
