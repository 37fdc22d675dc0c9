from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import schema
from inputs.sample import Sample
from model_fn.drawing import batch_grid, before_after
from tests.inputs.augment.helpers import sample_of, step
from tests.inputs.examples import reader

CONFIGURED = [step("mixup { alpha: 3 }"), step("mixup { alpha: 4 }")]


def test_find_step():
    assert before_after.find_step("mixup", CONFIGURED).mixup.alpha == 3
    assert before_after.find_step("mixup: alpha: 7", CONFIGURED).mixup.alpha == 7
    assert before_after.find_step("mixup:", CONFIGURED).mixup.alpha == 1.5
    assert before_after.find_step("mosaic", CONFIGURED).WhichOneof("preprocessing_step") == "mosaic"
    plug_in = step('custom { name: "mine" }')
    assert before_after.find_step("custom", [*CONFIGURED, plug_in]) == plug_in
    with pytest.raises(UsageError, match=r"did you mean 'mosaic'.*Supported: adjust_gamma"):
        before_after.find_step("mosaik", CONFIGURED)
    with pytest.raises(UsageError, match="settings of augmentation 'mixup'"):
        before_after.find_step("mixup: beta: 7", CONFIGURED)


def named(name: str, kind: str = "full") -> Sample:
    return sample_of(kind)._replace(image_level={schema.SOURCE_ID: tf.constant(name)})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """The title, number of columns and cells of each grid."""
    grids: List[Any] = []
    draw = batch_grid.draw_grid

    def note(cells: Any, *, title: str, columns: int) -> Any:
        grids.append((title, columns, cells))
        return draw(cells, title=title, columns=columns)

    monkeypatch.setattr(batch_grid, "draw_grid", note)
    return grids


def draw(text: str, samples: List[Sample], settings: str = "") -> Any:
    names = {1: "cat", 2: "dog"}
    return before_after.draw_step(
        step(text), samples, reader(settings), names, num_rows=2, num_after=2, seed=5
    )


def test_a_row_has_the_samples_and_the_results(drawn):
    page = draw("mixup { alpha: 2 }", [named("a"), named("b"), named("c")])
    title, columns, cells = drawn[0]
    assert (title, columns) == ("mixup { alpha: 2 }", 4)
    after = ["after, seed 5", "after, seed 6"]
    assert [cell.name for cell in cells] == ["a", "b", *after, "b", "c", *after]
    assert [len(cell.boxes) for cell in cells] == [3, 3, 6, 6] * 2
    assert cells[0].labels == ["cat", "dog (weight 0.5)", "3 (weight 0.25)"]
    assert cells[0].masks.shape == (3, 24, 32) and cells[0].keypoints.shape == (3, 3, 2)
    assert cells[2].labels != cells[3].labels  # other weights: other seeds
    assert page.width == 4 * 370 + 10


def test_values_that_are_no_colours_are_scaled(drawn):
    draw("normalize_image { original_maxval: 255 }", [named("a")])
    before, after = drawn[0][2][:2]
    assert "0 to 1, drawn as 0 to 255" in after.name
    np.testing.assert_allclose(after.pixels, before.pixels, atol=1)


def test_boxes_in_pixels_are_drawn_in_place(drawn):
    draw("scale_boxes_to_pixel_coordinates { }", [named("a")])
    before, after = drawn[0][2][:2]
    np.testing.assert_allclose(after.boxes, before.boxes, atol=1e-6)
    np.testing.assert_allclose(after.keypoints, before.keypoints, atol=1e-6)
