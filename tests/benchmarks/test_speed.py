"""Parts of the measurement that differ with the kind of model; times are not checked."""

from __future__ import annotations

import argparse
import pathlib

import pytest
from google.protobuf import text_format

from benchmarks.speed import components, growth, parts
from estimator_det.compat import tf
from estimator_det.protos import pipeline_pb2
from tests import small_extractor
from tests.detectors.two_stage import configs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small_extractor.use(monkeypatch)
    monkeypatch.setattr(parts, "WARM_UP", 0)
    monkeypatch.setattr(parts, "INPUT_ROUNDS", 1)
    monkeypatch.setattr(components, "AUGMENTED_IMAGES", 1)
    monkeypatch.setattr(components, "CONVERTED_IMAGES", 3)
    monkeypatch.setattr(components, "CONVERTED_SIDE", 40)
    for module in (parts, components):
        monkeypatch.setattr(module, "REPEATS", 1)


def arguments(folder: pathlib.Path, overrides: str) -> argparse.Namespace:
    config = pipeline_pb2.TrainEvalPipelineConfig(model=configs.small_config(overrides))
    config.train_input_reader.SetInParent()
    config.eval_input_reader.add()
    path = folder / "small.config"
    path.write_text(text_format.MessageToString(config))
    return argparse.Namespace(
        config=str(path), batch_size=2, label_map="", record="none", overrides=[], started=0.0
    )


def test_floor_needs_images_of_one_size(tmp_path):
    figures = parts.floor(arguments(tmp_path, configs.MASKS))
    assert 0 < figures["floor_seconds"] < figures["floor_first_step_seconds"]
    assert figures["floor_memory_gb"] > 0.1
    overrides = "image_resizer { keep_aspect_ratio_resizer {} }"
    with pytest.raises(ValueError, match=r"model\.faster_rcnn\.image_resizer\.fixed_shape"):
        parts.floor(arguments(tmp_path, overrides))


@pytest.mark.parametrize("name", ["random_horizontal_flip", "mixup", components.NEEDS_MASKS])
def test_a_step_and_its_kernels_are_measured(name):
    _, kernels = components.augmentation(name, (60, 80))
    assert kernels > 0


def test_growth_is_a_ratio_to_the_size_before(tmp_path, monkeypatch):
    for name in ("CONVERTED", "EVALUATED", "BOXES", "CLASSES"):
        monkeypatch.setattr(growth, name, (1, 2))
    rows = growth.growth(argparse.Namespace(scratch=tmp_path))["growth_ms"]
    assert [[size for size, _ in row] for row in rows.values()] == 5 * [[1, 2]]
    assert growth.report_lines({"x": [(10, 1.0), (1_000, 150.0)]}) == [
        "x: 10: 1 ms; 1,000: 150 ms, 1.50 × linear"
    ]


def test_conversion_writes_all_images(tmp_path):
    components.conversion(argparse.Namespace(scratch=tmp_path))
    (shard,) = (tmp_path / "converted").glob("train.record-*")
    assert sum(1 for _ in tf.data.TFRecordDataset(str(shard))) == 3
