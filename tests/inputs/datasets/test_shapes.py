import glob
import pathlib

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import demo
from inputs.datasets import figures, shapes
from inputs.datasets.figures import JOINTS


def test_boxes_are_inside_of_the_asked_size_and_hardly_overlap():
    options = shapes.ShapeOptions(min_extent=0.3, max_extent=0.5, max_shapes=3)
    for index in range(30):
        image = shapes.make_image((0, index), options)
        assert image.masks.shape == (len(image.boxes), *image.pixels.shape[:2])
        assert image.masks.sum(axis=0).max() == 1
        height, width = image.pixels.shape[:2]
        assert 1 <= len(image.boxes) == len(image.class_ids) <= 3
        assert (image.boxes >= 0).all() and (image.boxes <= 1).all()
        pixels = image.boxes * [height, width, height, width]
        longer = (pixels[:, 2:] - pixels[:, :2]).max(axis=1) / min(height, width)
        assert (longer > 0.3 - 1e-4).all() and (longer < 0.5 + 1e-4).all()
        for first in range(len(pixels)):
            for second in range(first):
                assert shapes.overlap(pixels[first], pixels[second]) <= shapes.MAX_OVERLAP


def test_the_configuration_of_the_demo_fits_the_joints():
    config = pipeline.read_pipeline(demo.MODELS["centernet_keypoints"].config)
    sides = {"left": "right", "right": "left"}
    mirrored = ["_".join(sides.get(word, word) for word in name.split("_")) for name in JOINTS]
    (flip,) = config.train_config.data_augmentation_options
    permutation = flip.random_horizontal_flip.keypoint_flip_permutation
    assert [JOINTS[k] for k in permutation] == mirrored
    for reader in (config.train_input_reader, *config.eval_input_reader):
        assert (reader.num_keypoints, reader.max_number_of_boxes) == (
            len(JOINTS),
            figures.MAX_FIGURES,
        )
    lines = [{edge.start, edge.end} for edge in config.eval_config.keypoint_edge]
    assert len(lines) == len(JOINTS) - 1 and set().union(*lines) == {*range(len(JOINTS))}
    (metric,) = config.eval_config.parameterized_metric
    assert {*metric.coco_keypoint_metrics.keypoint_label_to_sigmas} == {*JOINTS}


@pytest.mark.parametrize("drawings", [shapes, figures])
def test_data_set_on_disk(drawings, tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.SIZES, "tiny", shapes.Size(num_train=8, num_eval=2, num_shards=2))
    files = drawings.make_dataset(str(tmp_path), seed=3, size="tiny")
    train = sorted(glob.glob(files.train_pattern))
    assert len(train) == 2 and len(list(tf.data.TFRecordDataset(train))) == files.num_train == 8
    first = pathlib.Path(train[0]).read_bytes()
    drawings.make_dataset(str(tmp_path), seed=3, size="tiny")
    assert pathlib.Path(train[0]).read_bytes() == first
