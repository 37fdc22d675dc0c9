"""`python -m benchmarks.extractors`: the page of all extractors, or their speed.

`--table FILE` counts parameters and multiply-adds from graphs and writes the page. `--speed`
measures a training step and inference of a whole detector against the bare network (backbone and
feature maps; in training forward and backward with batch norm in training mode), and against
network and heads, for each extractor. The parts run in processes of their own and take turns.
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import sys
from typing import List, Optional


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extractors", description=__doc__)
    parser.add_argument("--table", type=pathlib.Path, help="Markdown file to write")
    parser.add_argument("--speed", action="store_true", help="measure and print")
    parser.add_argument("--only", default="*", help="glob over the types; not with --table")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="batch sizes")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.table and arguments.only != "*":
        parser.error("--only does not apply to --table, whose page has all types; remove it")
    if not (arguments.table or arguments.speed or arguments.worker):
        parser.error("give --table FILE, --speed, or both")
    return arguments


def _write_table(path: pathlib.Path) -> None:
    from benchmarks.extractors import graphs, table, two_stage, usual

    rows = []
    for kind, aliases in usual.types().items():
        print(f"counting {kind} …", file=sys.stderr, flush=True)
        rows.append(table.cells(kind, aliases, graphs.facts(kind)))
    two_stage_rows = []
    for kind, aliases in two_stage.types().items():
        print(f"counting {kind} …", file=sys.stderr, flush=True)
        two_stage_rows.append(two_stage.cells(kind, aliases, two_stage.facts(kind)))
    path.write_text(table.page(rows, two_stage_rows))


def _print_speed(pattern: str, batches: List[int]) -> int:
    from benchmarks.extractors import speed, table, usual

    kinds = [kind for kind in usual.types() if fnmatch.fnmatch(kind, pattern)]
    if not kinds:
        print(f"no type matches {pattern!r}", file=sys.stderr)
        return 1
    print(table.line(list(speed.COLUMNS)))
    print(table.line(["---"] * len(speed.COLUMNS)))
    for kind in kinds:
        for row in speed.measure(kind, batches):
            print(table.line(speed.cells(row)), flush=True)
    print(f"\n*: over {speed.LIMIT} x")
    return 0


def main(argv: Optional[List[str]] = None) -> int:
    """Writes the page or prints speeds; returns 1 if no type matches."""
    arguments = _parse(argv)
    if arguments.worker:
        from benchmarks.extractors import worker

        worker.serve(*arguments.worker)
        return 0
    if arguments.table:
        _write_table(arguments.table)
    return _print_speed(arguments.only, arguments.batch) if arguments.speed else 0


if __name__ == "__main__":
    sys.exit(main())
