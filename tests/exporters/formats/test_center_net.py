"""Exports of CenterNet with keypoints, and of EfficientDet."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any, List, NamedTuple

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf1
from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2
from exporters import Detector, formats
from exporters.detect_files import json_entries
from exporters.formats import tf2_checkpoint, tflite
from exporters.formats.export import export_formats
from exporters.importing.own_model import build_own_model
from exporters.network import ExportOptions, TfliteOptions
from tests.conftest import MODELS
from tests.detectors.keypoint_configs import LABEL_MAP, SIDE, small_config

D0 = "ssd_efficientdet_d0_512x512_coco17_tpu-8"


class Model(NamedTuple):
    config: Any
    checkpoint: str  # object-based
    values: Any  # by path
    photos: List[str]


def _config(model: Any) -> Any:
    config = pipeline_pb2.TrainEvalPipelineConfig(model=model)
    config.train_input_reader.label_map_path = str(LABEL_MAP)
    return config


def _model(config: Any, folder: pathlib.Path) -> Model:
    """Random weights whose scores are so far apart that rounding does not change their order."""
    own, random = build_own_model(config), np.random.default_rng(0)
    values = {}
    for name, path in own.object_paths.items():
        shape = own.shapes[name]
        values[path] = np.ones(shape, np.float32)
        if path.endswith(("bias", "beta", "moving_mean")):
            values[path] = 0.1 * random.normal(size=shape).astype(np.float32)
        elif len(shape) == 4:
            fan = np.prod(shape[:2]) if "depthwise" in path else np.prod(shape[:3])
            is_last = "prediction_head" in path and "layer_with_weights-0" not in path
            scale = np.sqrt(2 / fan) * (0.1 if is_last else 1)
            values[path] = (scale * random.normal(size=shape)).astype(np.float32)
    tf2_checkpoint.write_checkpoint(str(folder), values)
    photos = [str(folder / f"{i}.png") for i in range(2)]
    for photo in photos:
        blocks = random.integers(0, 256, [8, 8, 3], dtype=np.uint8)
        Image.fromarray(blocks).resize([SIDE, SIDE]).save(photo)
    return Model(config, str(folder / "ckpt-0"), values, photos)


@pytest.fixture(scope="module")
def center_net(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _model(_config(small_config()), tmp_path_factory.mktemp("center_net"))


def _export(model: Model, folder: pathlib.Path, names: Any, **options: Any) -> Any:
    chosen = ExportOptions(sample_images=model.photos, **options)
    return export_formats(
        model.config, model.checkpoint, str(folder), formats.resolve_formats(names), chosen
    )


def _assert_same_detections(export: Any, photo: str) -> None:
    first, *others = (json_entries(Detector(each.path)(photo)) for each in export.models)
    assert first
    for entries in others:
        for entry, wanted in zip(entries, first, strict=True):
            assert entry["name"] == wanted["name"]
            assert entry["score"] == pytest.approx(wanted["score"], abs=1e-4)
            assert entry["box"] == pytest.approx(wanted["box"], abs=1e-4)
            for point, other in zip(entry["keypoints"], wanted["keypoints"], strict=True):
                assert point.pop("name") == other.pop("name")
                assert point == pytest.approx(other, abs=1e-3)


@pytest.mark.slow
def test_formats_find_the_same_objects_and_keypoints(center_net, tmp_path):
    export = _export(center_net, tmp_path, ["saved_model", "tflite"])
    for each in export.models:
        assert max(each.difference.scores, each.difference.boxes) < 1e-4
    _assert_same_detections(export, center_net.photos[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExportOptions(tflite=TfliteOptions(max_detections=3)), "max_box_predictions"),
        (ExportOptions(quantize="int8"), "give --quantize float16 or dynamic"),
    ],
)
def test_options_that_tflite_does_not_have_for_it(options, message):
    with pytest.raises(UsageError, match=message):
        tflite.check_tflite(_config(small_config()), options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["center_net", D0])
def test_converters_that_are_installed(name, center_net, tmp_path):
    model = center_net
    if name == D0:
        config = pipeline.read_pipeline(MODELS / f"tf2/pipelines/{D0}.config")
        config.model.ssd.ClearField("image_resizer")
        size = config.model.ssd.image_resizer.fixed_shape_resizer
        size.height = size.width = 2 * SIDE  # the least that a pyramid of five levels takes
        model = _model(_config(config.model), tmp_path)
    names = ["saved_model", "frozen_graph", tf2_checkpoint.NAME]
    names += [each for each in ("onnx", "openvino") if importlib.util.find_spec(each)]
    export = _export(model, tmp_path / "exported", names)
    for each in export.models:
        if each.name != tf2_checkpoint.NAME:
            assert max(each.difference.scores, each.difference.boxes) < 1e-4
            continue
        reader = tf1.train.NewCheckpointReader(f"{each.path}/ckpt-0")
        for path, value in model.values.items():
            stored = reader.get_tensor(f"{path}/.ATTRIBUTES/VARIABLE_VALUE")
            np.testing.assert_array_equal(stored, value, path)
    for quantize in ("float16", "dynamic"):
        (lite,) = _export(model, tmp_path / quantize, ["tflite"], quantize=quantize).models
        assert (
            lite.difference.usual_scores < 0.1 and lite.num_bytes < 0.8 * export.models[1].num_bytes
        )
    if name != D0:
        found = export._replace(models=[each for each in export.models if each.difference])
        _assert_same_detections(found, model.photos[0])
