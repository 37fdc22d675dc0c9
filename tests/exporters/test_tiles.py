"""Detection on tiles: places, merging, and a detector of bright spots on a large image."""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest

from estimator_det.errors import UsageError
from estimator_det.programs.verbs import evaluate
from exporters import tiled_evaluation, tiles
from exporters.detector import Detections
from exporters.loaded_model import BOXES, CLASSES, NUM, SCORES, LoadedModel
from inputs.datasets import writer
from model_fn.evaluation import history
from model_fn.runs.options import BFLOAT16_CONVOLUTIONS
from tests.model_fn.evaluation.detections.test_scoring import write_records


@pytest.mark.parametrize(
    ("length", "side", "overlap", "expected"),
    [
        (100, 100, 0.2, [0]),
        (60, 100, 0.2, [0]),
        (101, 100, 0.2, [0, 1]),
        (180, 100, 0.2, [0, 80]),
        (181, 100, 0.2, [0, 40, 81]),
        (200, 100, 0.0, [0, 100]),
    ],
)
def test_places(length, side, overlap, expected):
    places = tiles.tiles_of(length, 50, side, overlap)
    assert [tile.top for tile in places] == expected
    assert {tile[1:] for tile in places} == {(0, min(side, length), 50)}


def _detections(boxes, scores, classes=None) -> Detections:
    count = len(boxes)
    return Detections(
        normalized_boxes=np.array(boxes, np.float32).reshape(-1, 4),
        scores=np.array(scores, np.float32),
        classes=np.array(classes or [1] * count),
        names=("spot",) * count,
        image_size=(100, 100),
    )


@pytest.mark.parametrize(
    ("boxes", "scores", "classes", "is_worse", "expected"),
    [
        # The same object from two tiles: the better one.
        ([[0, 0, 0.4, 0.4], [0, 0, 0.4, 0.42]], [0.6, 0.7], [1, 1], [0, 0], [1]),
        # Of two classes: both.
        ([[0, 0, 0.4, 0.4], [0, 0, 0.4, 0.42]], [0.6, 0.7], [1, 2], [0, 0], [1, 0]),
        # A part that a tile cuts off, although its score is higher.
        ([[0, 0, 0.8, 0.4], [0, 0, 0.2, 0.4]], [0.6, 0.9], [1, 1], [0, 1], [0]),
        # A part whose box is larger than what its tile shows of the object.
        ([[0, 0, 0.8, 0.4], [0.74, 0, 0.84, 0.4]], [0.6, 0.9], [1, 1], [0, 1], [0]),
        # A small object inside of a large one, which no tile cuts: both.
        ([[0, 0, 0.8, 0.4], [0, 0, 0.2, 0.4]], [0.6, 0.9], [1, 1], [0, 0], [1, 0]),
        # An object that is larger than a tile, and not seen as a whole: its best part stays.
        ([[0, 0, 0.5, 0.4], [0.45, 0, 1, 0.4]], [0.6, 0.9], [1, 1], [1, 1], [1, 0]),
        ([], [], [], [], []),
    ],
)
def test_one_detection_of_each_object_is_kept(boxes, scores, classes, is_worse, expected):
    detections = _detections(boxes, scores, classes)
    assert tiles.kept_detections(detections, np.array(is_worse, bool)).tolist() == expected


def test_a_box_that_ends_some_pixels_before_the_side_of_a_tile_is_cut_off():
    detections = _detections([[0.5, 0.5, 0.6, 0.98], [0.5, 0.5, 0.98, 0.6]], [0.5, 0.5])
    is_cut = tiles._is_cut(detections, tiles.Tile(0, 0, 300, 300), (300, 900))
    assert is_cut.tolist() == [True, False]


class SpotModel(LoadedModel):
    """Finds white spots, as long as they are larger than 4 % of the image that it gets."""

    def __init__(self) -> None:
        super().__init__("spots", {1: "spot"}, "")
        self.batches: list = []

    def run(self, images):
        self.batches.append(images.shape[:3])
        boxes = np.zeros([len(images), 1, 4], np.float32)
        found = np.zeros(len(images))
        for i, image in enumerate(images):
            rows, columns = np.nonzero(image[..., 0] == 255)
            if len(rows) and np.ptp(rows) > 0.04 * len(image):
                sides = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
                boxes[i, 0] = np.array(sides) / np.tile(image.shape[:2], 2)
                found[i] = 1
        ones = np.ones([len(images), 1], np.float32)
        return {NUM: found, BOXES: boxes, SCORES: ones * 0.9, CLASSES: ones}


def test_a_small_object_in_a_large_image_is_found_once_and_whole():
    image = np.zeros([1000, 700, 3], np.uint8)
    image[470:500, 380:410] = 255  # across the sides of tiles
    model = SpotModel()
    assert not len(tiles.TiledDetector(model, side=1000)(image))
    assert model.batches == [(1, 1000, 700)]
    detector = tiles.TiledDetector(model, 256)
    detections = detector(image)
    assert detections.boxes.round().tolist() == [[470, 380, 500, 410]]
    assert detections.image_size == (1000, 700)
    # Boxes of an image that was decoded at half of its size.
    (halved,) = detector.detect_batch(image[np.newaxis], (2000, 1400))
    assert halved.boxes.round().tolist() == [[940, 760, 1000, 820]]
    assert max(batch for batch, _, _ in model.batches) == tiles.BATCH_SIZE


def test_a_tile_has_the_better_box_of_a_small_object():
    class CoarseModel(SpotModel):
        def run(self, images):
            outputs = super().run(images)
            if images.shape[1] > 400:  # the whole image: a box that is not exact, at a higher score
                outputs[BOXES] += 0.01
                outputs[SCORES] += 0.05
            return outputs

    image = np.zeros([1000, 700, 3], np.uint8)
    image[470:530, 380:440] = 255
    for side, expected in ((400, [470, 380, 530, 440]), (290, [480, 387, 540, 447])):
        assert tiles.TiledDetector(CoarseModel(), side)(image).boxes.round().tolist() == [expected]


def test_the_best_detections_of_very_many_are_merged(monkeypatch):
    scores = np.linspace(0.0, 1.0, 500, dtype=np.float32)
    corners = np.random.default_rng(0).uniform(0.1, 0.9, [500, 2]).astype(np.float32)

    class NoiseModel(SpotModel):
        def run(self, images):
            count = len(images)
            boxes = np.tile(np.concatenate([corners, corners + 1e-4], axis=1), [count, 1, 1])
            return {NUM: np.full(count, 500.0), BOXES: boxes, CLASSES: np.ones([count, 500]),
                    SCORES: np.tile(scores, [count, 1])}  # fmt: skip

    monkeypatch.setattr(tiles, "MOST_DETECTIONS", 20)
    detections = tiles.TiledDetector(NoiseModel(), 50)(np.zeros([90, 90, 3], np.uint8))
    assert 0 < len(detections) <= 20 and detections.scores.min() > 0.98


@pytest.mark.parametrize(("side", "overlap"), [(0, 0.2), (10, 1.0), (10, -0.1)])
def test_impossible_tiles_are_refused(side, overlap):
    with pytest.raises(ValueError, match="at least 1 pixel"):
        tiles.TiledDetector(SpotModel(), side, overlap)


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(("side", "mean"), [(256, 1.0), (1000, 0.0)])
def test_an_evaluation_on_tiles_finds_what_a_whole_image_loses(tmp_path, monkeypatch, side, mean):
    image = np.zeros([1000, 700, 3], np.uint8)
    image[470:500, 380:410] = 255
    box = np.array([[470, 380, 500, 410]]) / (1000, 700, 1000, 700)
    labels = writer.Annotations(box, [1])
    examples = [
        writer.make_example(writer.encode_image(pixels, "png"), labels, filename=name)
        for name, pixels in (("a.png", image), ("b.png", np.zeros_like(image)))  # b has no spot
    ]
    records = [example.SerializeToString() for example in examples]
    config = write_records(tmp_path, records, {1: "spot"})
    config.eval_config.tiles.side = side
    monkeypatch.setattr(tiled_evaluation, "find_checkpoint", str)
    monkeypatch.setattr(tiled_evaluation, "step_of", lambda _: 7)
    monkeypatch.setattr(
        tiled_evaluation,
        "restored_network",
        lambda *_: contextlib.nullcontext(
            types.SimpleNamespace(checkpoint="c", run=SpotModel().run)
        ),
    )
    (evaluation,) = tiled_evaluation.evaluate_tiles(
        config, "run", str(tmp_path / "run"), sample_1_of_n=2
    )
    assert (evaluation.step, evaluation.reader) == (7, "0")
    assert evaluation.metrics["DetectionBoxes_Precision/mAP"] == pytest.approx(mean)
    (line,) = history.read(str(tmp_path / "run"), "0")
    assert (line.step, line.metrics) == (7, evaluation.metrics)
    with pytest.raises(UsageError, match="--continuous is for whole images"):
        evaluate.run_evaluation(config, "run", "run", continuous=True)
    with pytest.raises(UsageError, match="--precision is for whole images"):
        evaluate.run_evaluation(
            config, "run", "run", continuous=False, precision=BFLOAT16_CONVOLUTIONS
        )
