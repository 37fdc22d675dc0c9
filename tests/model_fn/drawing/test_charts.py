from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from model_fn.drawing import charts


def picture(*panels: charts.Panel, columns: int = 3, title: str = "") -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(charts.figure(panels, columns=columns, title=title))))


def test_panels_fill_rows_and_wide_ones_are_narrowed():
    panel, state = charts.bar_chart("a", ["x"], {"n": [1]}), dict(matplotlib.rcParams)
    one = picture(panel)
    row = picture(panel, panel, panel)
    assert row.shape[0] == one.shape[0] and row.shape[1] == pytest.approx(3 * one.shape[1], abs=3)
    wide = picture(panel._replace(width=3), panel, columns=2)
    assert wide.shape[0] == pytest.approx(2 * one.shape[0], abs=3)
    assert wide.shape[1] == pytest.approx(2 * one.shape[1], abs=3)
    assert dict(matplotlib.rcParams) == state  # which a program may use meanwhile
    with pytest.raises(ValueError, match="at least one"):
        charts.figure([])


@pytest.mark.parametrize(
    "panel",
    [
        charts.bar_chart("$x$ and $", ["$", "\\", "\x1b[2J\u202e"], {"$n": [0, 0, 0]}, log=True),
        charts.bar_chart("many", [str(i) for i in range(200)], {"n": range(200)}, width=3),
        charts.bar_chart("parts", ["狐 🙂"], {str(i): [i] for i in range(20)}),
        charts.histogram("parts of counts", [0, 1], {str(i): [i] for i in range(20)}),
        charts.bar_chart("none", [], {}),
        charts.histogram("empty", [0, 1, 2], {"n": [0, 0]}),
        charts.heatmap("zero", np.zeros([2, 2]), row_labels=["a", "b"], column_labels=["c", "$"]),
        charts.curves("none", []),
    ],
    ids=lambda panel: panel.title,
)
def test_strange_contents_are_drawn_without_a_warning(panel):
    assert picture(panel, title="\x1b $ a.config").shape[2] == 3
