from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
from matplotlib import figure
from matplotlib.backends import backend_agg
from PIL import Image

from model_fn.drawing import charts


def picture(*panels: charts.Panel, columns: int = 3, title: str = "") -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(charts.figure(panels, columns=columns, title=title))))


def share_of_color(pixels: np.ndarray, number: int) -> float:
    """Of the pixels, how many have one of the charts' colours."""
    text = charts.COLORS[number].lstrip("#")
    color = [int(text[i : i + 2], 16) for i in (0, 2, 4)]
    return float(np.mean(np.abs(pixels[..., :3].astype(int) - color).max(axis=2) < 12))


@pytest.mark.parametrize("kind", ["bars", "histogram"])
def test_legends_cover_no_bar(kind):
    """Between title and chart, however long the names are and whatever the bars."""
    names = ["train_input_reader", "eval_input_reader[0]", "eval_input_reader[1]", "other"]
    series = {name: [9.0, 9.0, 9.0] for name in names}
    panel = charts.histogram("title", [0, 1, 2, 3], series)
    if kind == "bars":
        panel = charts.bar_chart("title", ["x", "y", "z"], series)
    page = figure.Figure(
        figsize=charts.PANEL_INCHES, dpi=charts.DOTS_PER_INCH, layout="constrained"
    )
    canvas = backend_agg.FigureCanvasAgg(page)
    axes = page.add_subplot()
    charts._draw(axes, panel)
    canvas.draw()
    legend, title = axes.get_legend().get_window_extent(), axes._left_title.get_window_extent()
    assert legend.y0 >= axes.get_window_extent().y1 and legend.y1 <= title.y0
    assert legend.x1 <= page.bbox.x1


def test_histogram_marks_a_place():
    plain = charts.histogram("h", [1, 10, 100], {"n": [4, 2]}, log_x=True)
    marked = charts.histogram(
        "h", [1, 10, 100], {"n": [4, 2]}, log_x=True, marks={"here": 20}, ticks={1: "a"}
    )
    assert share_of_color(picture(plain), 3) == 0 < share_of_color(picture(marked), 3)


def test_heatmap_is_darkest_at_the_greatest_value():
    matrix = np.zeros([30, 30])
    matrix[0, 0] = 9
    pixels = picture(charts.heatmap("m", matrix)).astype(int)
    blue = (pixels[..., 2] - pixels[..., 0] > 60) & (pixels[..., :3].sum(axis=2) < 250)
    rows, columns = np.nonzero(blue[:, : int(blue.shape[1] * 0.8)])  # without the colour bar
    assert rows.mean() < pixels.shape[0] / 3 and columns.mean() < pixels.shape[1] / 3


@pytest.mark.parametrize("num_points", [1, 2, charts.FEW_POINTS, charts.FEW_POINTS + 1])
def test_few_points_of_a_curve_have_markers(num_points):
    def inked(points):
        shown = picture(charts.curves("", [charts.Curve("", points, [0.5] * len(points))]))
        color = tuple(int(charts.COLORS[0][i : i + 2], 16) for i in (1, 3, 5))
        return int((shown[..., :3] == color).all(axis=-1).any(axis=1).sum())

    rows = inked([float(k) for k in range(num_points)])
    # A line is two pixels high, a marker six.
    assert (rows > 3) == (num_points <= charts.FEW_POINTS), rows


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
        charts.bar_chart("parts", ["a"], {str(i): [i] for i in range(20)}),
        charts.histogram("parts of counts", [0, 1], {str(i): [i] for i in range(20)}),
        charts.bar_chart("none", [], {}),
        charts.histogram("empty", [0, 1, 2], {"n": [0, 0]}),
        charts.heatmap("zero", np.zeros([2, 2]), row_labels=["a", "b"], column_labels=["c", "$"]),
        charts.curves("none", []),
    ],
    ids=lambda panel: panel.title,
)
def test_strange_contents_are_drawn_without_a_warning(panel):
    assert picture(panel, title="\x1b $ a.config").shape[2] == 4


def test_bars_of_series_stand_side_by_side_above_their_label():
    axes = figure.Figure().add_subplot()
    charts._draw(axes, charts.bar_chart("t", ["a", "b"], {"one": [1, 2], "two": [3, 4]}))
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    np.testing.assert_allclose(bars, [(-0.2, 1), (0.8, 2), (0.2, 3), (1.2, 4)], atol=1e-6)
