"""Small charts, and figures of several charts as PNG bytes.

A `Panel` is one chart, made by `bar_chart`, `histogram`, `heatmap` or `curves`; `figure`
arranges and draws panels. This module uses matplotlib's objects only, without windows and global
state, so that any thread may draw while the program uses matplotlib for something else.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from PIL import Image

from estimator_det.console.printing import cut, escaped

COLORS = ("#2f6fab", "#e08a2c", "#3f9a5f", "#c2474f", "#7d62a8", "#4fa6a6", "#8a8a8a", "#b0892f")
TEXT_COLOR = "#333333"
LINE_COLORS = ("#aaaaaa", "#e6e6e6")  # axes, grid
CELL_TEXT_COLOR = "#2e2e2e"  # on light cells, which are light on a dark page, too
PANEL_INCHES = (5.2, 3.5)
SVG_INCHES = (4.6, 3.1)
TITLE_POINTS = 6  # between the title and what is below
LEGEND_ROW_POINTS = 14
LEGEND_COLUMNS = 3  # above a chart; long names of readers fill them
DOTS_PER_INCH = 110
FEW_POINTS = 20  # A curve has markers up to this length.
MAX_NAMED_BARS = 60  # more names are not legible
MAX_NUMBERED_CELLS = 400  # cells of a heatmap; more numbers are not legible
MAX_NAME_LENGTH = 24  # characters, beside a bar
# Above a chart, where it covers nothing.
LEGEND: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "fontsize": 8, "frameon": False,
               "borderaxespad": 0.2, "borderpad": 0.2, "handlelength": 1.2,
               "columnspacing": 1.2}  # fmt: skip
HEATMAP_LABEL_POINTS = 130  # height of a heatmap, shared by the labels of all rows

Numbers = Union[Sequence[float], np.ndarray]


class Panel(NamedTuple):
    """One chart of a figure."""

    title: str
    draw: Callable[[Any], None]  # (matplotlib Axes) -> None
    x_label: str = ""
    y_label: str = ""
    width: int = 1  # columns of the figure
    legend_rows: int = 0  # between title and chart


class Curve(NamedTuple):
    """One line of `curves`."""

    name: str  # "" for none in the legend
    x: Numbers
    y: Numbers


def figure(panels: Sequence[Panel], *, title: str = "", columns: int = 3) -> bytes:
    """Draws one or more panels row by row: the bytes of a PNG file.

    A panel starts a new row if it does not fit into the current one; panels wider than the
    `columns` of the grid are reduced to it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not panels:
        raise ValueError("a figure needs at least one panel; given none")
    places = []
    row, used = 0, 0
    for panel in panels:
        width = min(panel.width, columns)
        if used + width > columns:
            row, used = row + 1, 0
        places.append((row, used, width))
        used += width
    columns = max(first + width for _, first, width in places)
    width_inches, height_inches = PANEL_INCHES
    page = Figure(
        figsize=(width_inches * columns, height_inches * (row + 1) + (0.5 if title else 0)),
        dpi=DOTS_PER_INCH,
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
    )
    canvas = FigureCanvasAgg(page)
    grid = page.add_gridspec(row + 1, columns)
    for panel, (row, first, width) in zip(panels, places):
        _draw(page.add_subplot(grid[row, first : first + width]), panel)
    if title:
        page.suptitle(_plain(title), fontsize=14, color=TEXT_COLOR, x=0.01, ha="left")
    with warnings.catch_warnings():
        # The font draws a box for each letter that it lacks, as emoji and Chinese.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        canvas.draw()  # `savefig` would draw all of it twice
    buffer = io.BytesIO()
    # This level takes half the time of the default, for files that are as small.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.save(buffer, "png", compress_level=3)
    return buffer.getvalue()


def load() -> None:
    """Imports what `figure` needs, if it is installed; while TensorFlow computes, it is free."""
    with contextlib.suppress(ImportError):  # `figure` raises it again.
        importlib.import_module("matplotlib.backends.backend_agg")
        importlib.import_module("matplotlib.figure")


def svg(panel: Panel) -> str:
    """A panel without its title as an SVG element of an HTML page.

    Text has the colour of the page; axes and grid have the colour of its CSS variable --line.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    page = Figure(figsize=SVG_INCHES, layout="constrained")
    page.patch.set_alpha(0)
    axes = page.add_subplot()
    axes.patch.set_alpha(0)
    _draw(axes, panel._replace(title=""))
    lines, names = axes.get_legend_handles_labels()
    if legend := axes.get_legend():
        legend.remove()
    if len(names) > 1:
        # A legend wider than the chart would squeeze it.
        names = [cut(name, MAX_NAME_LENGTH) for name in names]
        axes.legend(lines, names, ncols=4 if max(map(len, names)) < 12 else 2, **LEGEND)
    buffer = io.StringIO()
    # Text stays text: it is a quarter of the size of outlines, and can be searched.
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        FigureCanvasSVG(page).print_svg(buffer, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # The page chooses the fonts.
    text = re.sub(r"<metadata>.*</metadata>|<style .*?</style>|font-family:[^;\"]*;?", "",
                  text[text.index("<svg") :], flags=re.DOTALL)  # fmt: skip
    text = text.replace(TEXT_COLOR, "currentColor")
    for color in LINE_COLORS:
        text = text.replace(color, "var(--line)")
    return text


def _draw(axes: Any, panel: Panel) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE_COLORS[0])
    axes.tick_params(labelsize=8, colors=TEXT_COLOR, length=3)
    axes.grid(color=LINE_COLORS[1], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_prop_cycle(color=COLORS)
    axes.set_xlabel(panel.x_label, fontsize=9, color=TEXT_COLOR)
    axes.set_ylabel(panel.y_label, fontsize=9, color=TEXT_COLOR)
    axes.set_title(
        panel.title,
        fontsize=11,
        loc="left",
        color=TEXT_COLOR,
        fontweight="bold",
        pad=TITLE_POINTS + LEGEND_ROW_POINTS * panel.legend_rows,
    )
    panel.draw(axes)


def bar_chart(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Numbers],
    *,
    y_label: str = "",
    log: bool = False,
    width: int = 1,
) -> Panel:
    """Bars side by side for each label, one for each series: name -> a value for each label.

    Labels are omitted if there are too many to be legible; `width` counts columns of the figure.
    """

    def draw(axes: Any) -> None:
        places = np.arange(len(labels))
        bar_width = 0.8 / max(len(series), 1)
        for number, (name, values) in enumerate(series.items()):
            left = places + (number - (len(series) - 1) / 2) * bar_width
            heights = np.asarray(values, float)
            bars = axes.bar(left, heights, bar_width * 0.94, label=name)
            if len(labels) * len(series) <= MAX_NAMED_BARS / 2:
                texts = [_short_number(value) if value else "" for value in heights]
                axes.bar_label(bars, texts, fontsize=7, color=TEXT_COLOR, padding=1)
        if all(not np.any(np.asarray(values)) for values in series.values()):
            axes.set_ylim(0, 1)
        elif log:
            axes.set_yscale("log")
            axes.set_ylim(bottom=0.8)
        if len(labels) <= MAX_NAMED_BARS:
            longest = max(map(len, labels), default=0)
            slanted = max(sum(map(len, labels)), 0.75 * longest * len(labels)) > 55 * width
            upright = len(labels) > 12 * width
            axes.set_xticks(
                places,
                [_plain(cut(label, MAX_NAME_LENGTH)) for label in labels],
                rotation=90 if upright else (35 if slanted else 0),
                ha="right" if slanted and not upright else "center",
                fontsize=8,
            )
        axes.grid(axis="x", visible=False)
        axes.margins(x=0.01, y=0.12)
        _finish_counts(axes, series)

    return Panel(title, draw, "", y_label, width, _legend_rows(series))


def histogram(
    title: str,
    edges: Numbers,
    series: Mapping[str, Numbers],
    *,
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    marks: Optional[Mapping[str, float]] = None,
    ticks: Optional[Mapping[float, str]] = None,
) -> Panel:
    """Counts per bin; several series are drawn over each other.

    Args:
        edges: n + 1 edges of the bins, finite and increasing.
        series: Name -> n counts.
        marks: Name -> x, drawn as a dashed line.
        ticks: x -> its text, instead of automatic ticks.
    """

    def draw(axes: Any) -> None:
        alpha = 0.85 if len(series) == 1 else 0.5
        for name, counts in series.items():
            axes.stairs(np.asarray(counts, float), edges, fill=True, alpha=alpha, label=name)
        if log_x:
            axes.set_xscale("log")
        axes.set_xlim(edges[0], edges[-1])
        if ticks is not None:
            axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
            axes.minorticks_off()
        above = axes.get_xaxis_transform()
        for name, place in (marks or {}).items():
            axes.axvline(place, color=COLORS[3], linestyle="--", linewidth=1)
            text = f" {_plain(name)}"
            axes.text(place, 0.98, text, transform=above, fontsize=8, color=COLORS[3], va="top")
        axes.margins(y=0.12)
        _finish_counts(axes, series)

    return Panel(title, draw, x_label, y_label, legend_rows=_legend_rows(series))


def heatmap(
    title: str,
    matrix: np.ndarray,
    *,
    row_labels: Optional[Sequence[str]] = None,
    column_labels: Optional[Sequence[str]] = None,
    x_label: str = "",
    y_label: str = "",
) -> Panel:
    """Numbers [rows, columns] as colours, first row on top; small ones with the numbers."""

    def draw(axes: Any) -> None:
        values = np.asarray(matrix, float)
        image = axes.imshow(values, cmap="Blues", aspect="auto", vmin=min(0, np.nanmin(values)))
        axes.figure.colorbar(image, ax=axes, shrink=0.9).ax.tick_params(labelsize=7)
        axes.grid(visible=False)
        for labels, set_ticks, rotation in (
            (column_labels, axes.set_xticks, 90),
            (row_labels, axes.set_yticks, 0),
        ):
            if labels is not None and len(labels) <= MAX_NAMED_BARS:
                texts = [_plain(cut(label, MAX_NAME_LENGTH)) for label in labels]
                size = min(7, HEATMAP_LABEL_POINTS / max(len(labels), 1))
                set_ticks(np.arange(len(labels)), texts, rotation=rotation, fontsize=size)
            else:
                set_ticks([])
        if values.size <= MAX_NUMBERED_CELLS:
            middle = np.nanmax(values) / 2
            for row, column in np.ndindex(*values.shape):
                value = values[row, column]
                if value and np.isfinite(value):
                    color = "white" if value > middle else CELL_TEXT_COLOR
                    text = _short_number(value)
                    axes.text(column, row, text, ha="center", va="center", fontsize=6, color=color)

    return Panel(title, draw, x_label, y_label)


def curves(
    title: str,
    lines: Sequence[Curve],
    *,
    x_label: str = "",
    y_label: str = "",
    limits: Optional[Tuple[float, float, float, float]] = None,
    legend: str = "lower left",
) -> Panel:
    """Lines through points; colours repeat after eight lines.

    Args:
        lines: A legend shows their names if there are at most as many as colours.
        limits: Minimum and maximum of x, then of y; by default the limits of the lines.
        legend: Its place, in matplotlib's words.
    """

    def draw(axes: Any) -> None:
        for line in lines:
            # A curve of one point is no line.
            marker = "o" if len(line.x) <= FEW_POINTS else None
            axes.plot(
                line.x, line.y, linewidth=1.4, marker=marker, markersize=4, label=_plain(line.name)
            )
        if limits is not None:
            axes.set_xlim(limits[0], limits[1])
            axes.set_ylim(limits[2], limits[3])
        if len(lines) <= len(COLORS) and any(line.name for line in lines):
            # A fixed place: finding the best one takes seconds with much data.
            axes.legend(loc=legend, fontsize=8, framealpha=0.8, edgecolor="none")

    return Panel(title, draw, x_label, y_label)


def _finish_counts(axes: Any, series: Mapping[str, Numbers]) -> None:
    """Integer ticks for integers, and a legend above several series."""
    if axes.get_yscale() == "linear" and all(
        float(value).is_integer() for row in series.values() for value in row
    ):
        axes.yaxis.get_major_locator().set_params(integer=True)
    if len(series) > 1:
        axes.legend(ncols=LEGEND_COLUMNS, **LEGEND)


def _legend_rows(series: Mapping[str, Numbers]) -> int:
    return -(-len(series) // LEGEND_COLUMNS) if len(series) > 1 else 0


def _plain(text: str) -> str:
    """The text escaped, dollar signs as well, which start a formula in matplotlib."""
    return escaped(text).replace("$", r"\$")


def _short_number(value: float) -> str:
    if value != value:
        return "–"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.0f}k"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"
