from __future__ import annotations

import pathlib
from typing import Any

import pytest

import inputs
from estimator_det.config.pipeline import parse_pipeline
from estimator_det.config.text import ConfigError
from inputs.checks.masks import check_masks
from tests.inputs.examples import BOXES, encoded, example, picture, write

MASK = {"image/object/mask": [encoded(picture())] * 2}


def _path(folder: pathlib.Path, *features: Any) -> str:
    return str(write(folder / "r", [example(one) for one in features]))


def test_boxes_without_any_mask_are_refused(tmp_path: pathlib.Path) -> None:
    path = _path(tmp_path, BOXES, BOXES)
    with pytest.raises(ConfigError, match="r: none of the 4 boxes in its first records has a mask"):
        check_masks(path)


def test_some_masks_or_no_boxes_pass(tmp_path: pathlib.Path) -> None:
    check_masks(_path(tmp_path, BOXES, {**BOXES, **MASK}))
    check_masks(_path(tmp_path, {}, {}))


def test_a_model_with_masks_is_not_trained_without(tmp_path: pathlib.Path) -> None:
    text = f"""
    model {{ faster_rcnn {{ num_classes: 4 number_of_stages: 3 image_resizer {{
      fixed_shape_resizer {{ height: 6 width: 6 }} }} }} }}
    train_config {{ batch_size: 1 }}
    train_input_reader {{ load_instance_masks: true max_number_of_boxes: 3
      tf_record_input_reader {{ input_path: "{_path(tmp_path, BOXES)}" }} }}
    """
    with pytest.raises(ConfigError, match="has a mask in 'image/object/mask', and the model"):
        inputs.create_train_input_fn(parse_pipeline(text), lambda images: (images, images))({})
