"""Object-based checkpoints of a small detector: restored with a table, or refused."""

from __future__ import annotations

import functools
import pathlib
import shutil
from typing import Any, Dict, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors import make_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import train_pb2
from exporters.formats import tf2_checkpoint
from model_fn.checkpoints import find, object_based
from model_fn.checkpoints.repair import step_of
from model_fn.checkpoints.variables import check_variables
from model_fn.training import warm_start
from tests.checkpoints import save
from tests.detectors.configs import small_config

TF1 = "feature_extractor { type: 'ssd_mobilenet_v1' }"
TF2 = "feature_extractor { type: 'ssd_mobilenet_v1_keras' }"
BACKBONE = "model/_feature_extractor/classification_backbone"
HEADS = "model/_box_predictor"

Values = Dict[str, np.ndarray]


@functools.cache
def _network(overrides: str = TF2) -> Tuple[Any, Any]:
    """The small detector in training, and its graph."""
    with tf.Graph().as_default() as graph:
        detector = make_detector(small_config(overrides), is_training=True)
        detector.predict(tf.zeros([1, 64, 64, 3]))
    return detector, graph


@functools.cache
def _values(checkpoint_type: str = "full") -> Values:
    """A number of its own in each variable of the small detector, by path."""
    detector, graph = _network()
    with graph.as_default():
        shapes = {each.op.name: each.shape.as_list() for each in tf1.global_variables()}
    paths = detector.object_paths([*shapes], checkpoint_type)
    return {
        path: np.full(shapes[name], number, np.float32)
        for number, (name, path) in enumerate(sorted(paths.items()))
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder like the unpacked archive of a published model."""
    folder = tmp_path_factory.mktemp("archive")
    tf2_checkpoint.write_checkpoint(str(folder / "checkpoint"), _values())
    return folder


def _table(checkpoint: Any, kind: str, overrides: str = TF2) -> Any:
    """The table of a fine-tuning, once restored values were compared."""
    config = train_pb2.TrainConfig(
        fine_tune_checkpoint=str(checkpoint), fine_tune_checkpoint_type=kind
    )
    detector, graph = _network(overrides)
    with graph.as_default(), tf1.Session() as session:
        table = warm_start.plan_warm_start(detector, config, None, small_config(overrides))
        warm_start.initialize_from(table)
        session.run(tf1.global_variables_initializer())
        reader = tf1.train.NewCheckpointReader(table.path)
        for key, value in session.run(table.restored).items():
            np.testing.assert_array_equal(value, reader.get_tensor(key), key)
    return table


@pytest.mark.parametrize(("kind", "num_left"), [("full", 0), ("detection", 8)])
def test_a_detector_restores(archive, kind, num_left):
    table = _table(archive / "checkpoint" / "ckpt-0", kind)
    assert len(table.restored) == len(_values()) - num_left
    assert (table.missing, table.mismatched, table.share) == ([], [], 1.0)
    assert len(table.unused) == table.heads == num_left
    assert len(table.unused_slots) == 2  # save_counter and the graph of objects


def test_a_classifier_restores_the_backbone(tmp_path):
    values = _values("classification")
    assert all(path.startswith("feature_extractor/layer_with_weights-") for path in values)
    tf2_checkpoint.write_checkpoint(str(tmp_path), values)
    table = _table(tmp_path / "ckpt-0", "classification")
    assert len(table.restored) == len(values) == table.backbone
    assert "restored 27" not in table.summary() and table.missing == []


def test_of_a_training_slots_and_step_are_left_out(tmp_path):
    slot = f"{BACKBONE}/layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/momentum"
    more = {"step": np.int64(1200), "optimizer/iter": np.int64(1200), slot: np.float32(1)}
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    values = {f"{name}{suffix}": value for name, value in {**_values(), **more}.items()}
    prefix = str(tmp_path / "ckpt-7")
    values["_CHECKPOINTABLE_OBJECT_GRAPH"] = b"\xff"  # The keys say enough.
    tensors, slices = list(map(tf.constant, values.values())), [""] * len(values)
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(values), shape_and_slices=slices, tensors=tensors
    )
    table = _table(prefix, "full")
    assert len(table.restored) == len(_values()) and len(table.unused_slots) == 4
    assert "(and 4 slots of optimizers" in table.heading()
    assert step_of(prefix) == 1200


def test_keys_are_found_through_the_graph_of_objects(tmp_path):
    """The key is one of the ways to a variable, here another one than the path."""
    layer, backbone, model = tf.Module(), tf.Module(), tf.Module()
    layer.kernel = tf.Variable(1.0)
    setattr(backbone, "layer-1", layer)
    setattr(backbone, "layer_with_weights-0", layer)
    setattr(model, "box/scale", backbone)
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    graph = object_based.ObjectGraph(prefix)
    keys = {graph.key(f"model/box.Sscale/{name}/kernel") for name in
            ("layer-1", "layer_with_weights-0")}  # fmt: skip
    assert len(keys) == 1 and graph.roots == ["model", "save_counter"][:1]
    assert graph.key("model/box.Sscale/layer-2/kernel") is None


def test_every_object_of_another_model_matches(archive):
    """Modules nested as in the Object Detection API, whose lists have their own kind of object."""
    values = _values()
    lists: Dict[str, Any] = {}
    model = tf.Module()
    model._box_predictor = predictor = tf.Module()
    predictor._prediction_heads = {"box_encodings": []}
    for number in range(2):
        layer, head = tf.Module(), tf.Module()
        path = f"{HEADS}/_prediction_heads/box_encodings/{number}/_box_encoder_layers/0"
        layer.kernel = tf.Variable(tf.zeros_like(values[f"{path}/kernel"]))
        layer.bias = tf.Variable(tf.zeros_like(values[f"{path}/bias"]))
        head._box_encoder_layers = [layer]
        predictor._prediction_heads["box_encodings"].append(head)
        lists[path] = layer
    status = tf.train.Checkpoint(model=model).restore(str(archive / "checkpoint" / "ckpt-0"))
    status.assert_existing_objects_matched()
    for path, layer in lists.items():
        np.testing.assert_array_equal(layer.kernel, values[f"{path}/kernel"])


OTHER = "feature_extractor { type: 'ssd_mobilenet_v2_keras' num_layers: 2 }"


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("detection", TF1, r"of the TF2 line, .*'ssd_mobilenet_v1' is a network of the TF1 line"),
        ("classification", TF2, "is a checkpoint of a detector, .*checkpoint_type=detection"),
        ("detection", OTHER, "is of another network than .*'ssd_mobilenet_v2_keras'.* are missing"),
        ("detection", TF2 + "feature_extractor { depth_multiplier: 0.2 }", "have another shape"),
    ],
)
def test_what_cannot_be_restored_is_refused_by_field(archive, kind, overrides, message):
    with pytest.raises(UsageError, match=f"train_config.fine_tune_checkpoint: .*{message}"):
        _table(archive, kind, overrides)


def test_a_checkpoint_of_the_tf1_line_is_refused(tmp_path):
    prefix = save(tmp_path, {"FeatureExtractor/MobilenetV1/Conv2d_0/weights": 1.0})
    with pytest.raises(UsageError, match=r"of the TF1 line, .* network of the TF2 line.* ckpt-0"):
        _table(prefix, "detection")


def test_an_evaluation_names_the_number_of_classes(archive):
    model = small_config(f"num_classes: 5 {TF2}")
    checkpoint = find.find_checkpoint(str(archive))
    with tf.Graph().as_default():
        detector = make_detector(model, is_training=False)
        detector.predict(tf.zeros([1, 64, 64, 3]))
        stored = object_based.stored_variables(checkpoint, detector, False, model)
        with pytest.raises(RunError, match=r"(?s)has shape .*--set model.ssd.num_classes=2"):
            check_variables(checkpoint, stored, model)


def test_paths_of_checkpoints(archive, tmp_path):
    prefix = str(archive / "checkpoint" / "ckpt-0")
    shard = ".data-00000-of-00001"
    for path in (str(archive), str(archive / "checkpoint"), prefix, prefix + ".index",
                 prefix + shard):  # fmt: skip
        assert find.find_checkpoint(path) == prefix
    copy = tmp_path / "copy"
    shutil.copytree(archive / "checkpoint", copy)
    (copy / "checkpoint").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file named 'checkpoint'.*e.g. .*/ckpt-0"):
        find.find_checkpoint(str(copy))
    cut = copy / f"ckpt-0{shard}"
    cut.write_bytes(cut.read_bytes()[:-8])
    with pytest.raises(RunError, match=r"ckpt-0 is damaged.* Copy it again"):
        _table(copy / "ckpt-0", "detection")
