"""Feature maps and variables of every registered extractor."""

from __future__ import annotations

from typing import Any, List

import pytest

from tests.extractors.build import TYPES, build
from tests.extractors.feature_maps import (
    inception_resnet,
    mobiledet,
    mobilenet_v1,
    mobilenet_v2_v3,
    short,
)
from tests.extractors.feature_maps.row import Row

ROWS = [*mobilenet_v1.ROWS, *mobilenet_v2_v3.ROWS, *inception_resnet.ROWS]


def check(row: Row) -> None:
    built = build(row.kind, row.text, row.size)
    assert built.maps == row.maps
    assert all(name.startswith(row.scope) for name in built.variables)
    for name, shape in row.has.items():
        found = built.variables[row.scope + name]
        assert shape is None or found == shape, name
    assert not [n for n in built.variables if any(part in n for part in row.lacks)]
    assert row.variables in (0, len(built.variables))
    assert row.penalties in (None, built.penalties)
    if row.like:
        plain = next(r for r in ROWS if (r.kind, r.text) == (row.kind, row.like))
        assert built.variables == build(plain.kind, plain.text, plain.size).variables


def row_name(row: Row) -> str:
    return row.kind


def marked(rows: List[Row]) -> List[Any]:
    marks = {False: (), True: pytest.mark.exhaustive}
    return [pytest.param(row, marks=marks[row.is_exhaustive]) for row in rows]


@pytest.mark.parametrize("row", marked(ROWS), ids=row_name)
def test_row(row: Row) -> None:
    check(row)


@pytest.mark.usefixtures("short_networks", "fresh_builds")
@pytest.mark.parametrize("row", marked(short.ROWS), ids=row_name)
def test_short_row(row: Row) -> None:
    check(row)


@pytest.mark.usefixtures("tiny_mobiledet")
@pytest.mark.parametrize("row", mobiledet.ROWS, ids=lambda row: row.text)
def test_mobiledet_row(row: Row) -> None:
    check(row)


def test_every_type_has_a_row_or_a_golden() -> None:
    others = {f"ssd_mobiledet_{name}" for name in ("cpu", "dsp", "edgetpu", "gpu")}
    deep = {f"ssd_resnet{layers}_v1_{neck}" for layers in (101, 152) for neck in ("fpn", "ppn")}
    in_rows = {row.kind.replace("_keras", "") for row in (*ROWS, *short.ROWS)}
    assert in_rows | others | deep == set(TYPES)
