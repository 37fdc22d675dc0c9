"""A small network of the TF2 line: its checkpoints and SavedModels are imported and exported."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, NamedTuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from exporters import network
from exporters.detector import Detector
from exporters.formats import resolve_formats, tf2_checkpoint
from exporters.formats.export import export_formats
from exporters.formats.saved_model import SavedModel
from exporters.importing import importer
from exporters.importing.own_model import build_own_model
from tests.conftest import MODELS
from tests.detectors.test_tf2_line import LIGHT
from tests.exporters.conftest import small_config

TYPE = "model.ssd.feature_extractor.type"


class Trained(NamedTuple):
    config: Any
    checkpoint: str
    values: Dict[str, np.ndarray]  # by path
    names: Dict[str, str]  # our names by path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    extractor = TYPE.rpartition(".")[0]
    changes = [f"{TYPE}=ssd_mobilenet_v1_keras", f"{extractor}.num_layers=2"]
    config = pipeline.apply_overrides(small_config(), changes)
    own = build_own_model(config)
    random = np.random.default_rng(0)
    values = {
        path: random.uniform(0.5, 1.5, own.shapes[name]).astype(np.float32)
        for name, path in own.object_paths.items()
    }
    folder = tmp_path_factory.mktemp("trained")
    tf2_checkpoint.write_checkpoint(str(folder), values)
    names = {path: name for name, path in own.object_paths.items()}
    return Trained(config, str(folder / "ckpt-0"), values, names)


def _assert_imported(trained: Trained, source: str, path: str, folder: pathlib.Path) -> None:
    published = importer.read_published(source, path)
    imported = importer.import_model(published, trained.config, str(folder))
    assert imported.warnings == []
    reader = tf1.train.NewCheckpointReader(imported.checkpoint)
    for key, value in trained.values.items():
        np.testing.assert_array_equal(reader.get_tensor(trained.names[key]), value, key)


@pytest.mark.parametrize("source", [tf2_checkpoint.NAME, importer.CHECKPOINT])
def test_a_checkpoint_is_imported(source, trained, tmp_path):
    _assert_imported(trained, source, trained.checkpoint, tmp_path / "imported")


def test_a_saved_model_has_the_variables_of_its_checkpoint(trained, tmp_path):
    """As exporter_main_v2.py writes it: the detector is the object `_model`."""
    module = tf.Module()
    module._model = tf2_checkpoint.tree(trained.values)["model"]
    backbone = module._model._feature_extractor.classification_backbone
    kernel = getattr(backbone, "layer_with_weights-0").kernel

    @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3], tf.float32)])
    def detect(image: Any) -> Any:
        return {"maps": tf.nn.conv2d(image, kernel, 2, "SAME")}

    tf.saved_model.save(module, str(tmp_path / "saved"), {"serving_default": detect})
    assert SavedModel().recognizes(str(tmp_path / "saved"))
    _assert_imported(trained, "saved_model", str(tmp_path / "saved"), tmp_path / "imported")


@pytest.mark.slow
def test_exports_of_separable_heads_and_biases_before_batch_norm_are_read_again(tmp_path):
    """All feature maps share the heads, whose batch norm TFLite has in copies of the weights."""
    config = pipeline.read_pipeline(str(MODELS / "tf2/pipelines" / f"{LIGHT}.config"))
    heads = "model.ssd.box_predictor.weight_shared_convolutional_box_predictor.conv_hyperparams"
    small = "model.ssd.feature_extractor.depth_multiplier=0.1"
    config = pipeline.apply_overrides(config, [small, f"{heads}.force_use_bias=true"])
    own, random = build_own_model(config), np.random.default_rng(0)
    values = {}
    for name, path in own.object_paths.items():
        noise = random.normal(0, np.prod(own.shapes[name][:-1]) ** -0.5, own.shapes[name])
        values[path] = np.float32(1 + noise**2 if "variance" in path else noise)
    tf2_checkpoint.write_checkpoint(str(tmp_path), values)
    checkpoint, image, scores = str(tmp_path / "ckpt-0"), np.zeros([320, 320, 3], np.uint8), []
    formats, options = resolve_formats([tf2_checkpoint.NAME, "tflite"]), network.ExportOptions()
    for folder in (str(tmp_path / "b"), str(tmp_path / "a")):
        export_formats(config, checkpoint, folder, formats, options)
        published = importer.read_published("tflite", f"{folder}/model.tflite")
        imported = importer.import_model(published, config, f"{folder}/imported")
        assert not any("not in the checkpoint" in each for each in imported.warnings)
        checkpoint = imported.checkpoint
        scores.append(Detector(folder)(image).scores)
    np.testing.assert_allclose(*scores, atol=1e-5)
    reader = tf1.train.NewCheckpointReader(str(tmp_path / "b" / tf2_checkpoint.NAME / "ckpt-0"))
    for path, value in values.items():
        stored = reader.get_tensor(f"{path}/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(stored, value, path)


def test_the_other_line_is_refused(trained, tmp_path):
    config = pipeline.apply_overrides(trained.config, [f"{TYPE}=ssd_mobilenet_v1"])
    with pytest.raises(UsageError, match="'ssd_mobilenet_v1' is a network of the TF1 line"):
        tf2_checkpoint.Tf2Checkpoint().check(config, network.ExportOptions())
    published = importer.read_published(tf2_checkpoint.NAME, trained.checkpoint)
    with pytest.raises(UsageError, match="object-based checkpoint of the TF2 line"):
        importer.import_model(published, config, str(tmp_path / "imported"))
