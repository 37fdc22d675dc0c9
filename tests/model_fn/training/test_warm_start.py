from __future__ import annotations

import logging
import pathlib
from typing import Any, Dict

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.protos import model_pb2, train_pb2
from model_fn.checkpoints.variables import NEUTRAL_STATISTICS
from model_fn.training import optimizers, warm_start
from tests.checkpoints import save


class _Restores:
    """The part of a detector that fine-tuning asks."""

    is_tf2_line = False

    def __init__(self, names: Dict[str, tf.Variable]) -> None:
        self._names = names
        self.asked: Any = []

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        self.asked.append((checkpoint_type, load_all))
        return self._names


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    return save(tmp_path, {"net/w": [1.0, 2.0], "net/b": [3.0, 4.0, 5.0], "net/old": 6.0})


def test_table_tells_each_fate(checkpoint, caplog):
    config = train_pb2.TrainConfig(
        fine_tune_checkpoint=checkpoint, load_all_detection_checkpoint_vars=True
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("mine/w", [2], initializer=tf1.zeros_initializer())
        bias = tf1.get_variable("mine/b", [2], initializer=tf1.zeros_initializer())
        new = tf1.get_variable("mine/new", [], initializer=tf1.zeros_initializer())
        detector: Any = _Restores({"net/w": weight, "net/b": bias, "net/new": new})
        with caplog.at_level(logging.INFO):
            table = warm_start.plan_warm_start(detector, config, None)
        assert table is not None
        warm_start.initialize_from(table)
        optimizer = optimizers.MovingAverageOptimizer(
            tf1.train.GradientDescentOptimizer(0.0), decay=0.5
        )
        optimizer.minimize(tf.reduce_sum(weight) + tf.reduce_sum(bias) + new)
        shadow = next(v for v in tf1.global_variables() if v.op.name.startswith("mine/w/Exp"))
        session.run(tf1.global_variables_initializer())
        assert session.run(weight).tolist() == [1.0, 2.0]
        assert session.run(shadow).tolist() == [1.0, 2.0]
        assert session.run(bias).tolist() == [0.0, 0.0]
    assert detector.asked[0] == ("classification", True)
    assert list(table.restored) == ["net/w"]
    assert table.mismatched == [("net/b", [3], [2])]
    assert (table.missing, table.unused) == (["net/new"], ["net/old"])
    assert "1 restored, 1 of another shape, 1 missing in the checkpoint, 1 in" in caplog.text
    assert "net/b: checkpoint [3], model [2]" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


class _WithHeads(_Restores):
    """The heads have the shapes of the checkpoint's `net/b`, but not of its `net/old`."""

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        names = super().restore_map(checkpoint_type, load_all)
        heads = ("net/b", "net/old") if load_all else ()
        return {name: each for name, each in names.items() if name == "net/w" or name in heads}


@pytest.mark.parametrize(("kind", "is_told"), [("detection", True), ("classification", False)])
def test_an_option_that_restores_heads_is_told(checkpoint, kind, is_told):
    config = train_pb2.TrainConfig(fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type=kind)
    text = "load_all_detection_checkpoint_vars=true restores 1 variable of the heads, too"
    shapes = {"net/w": [2], "net/b": [3], "net/old": [2]}
    with tf.Graph().as_default():
        names = {name: tf1.get_variable(name, shape) for name, shape in shapes.items()}
        detector: Any = _WithHeads(names)
        assert (text in warm_start.table_of(detector, config).heading()) == is_told
        config.load_all_detection_checkpoint_vars = True
        assert text not in warm_start.table_of(detector, config).heading()


def test_resuming_does_not_look_at_it(checkpoint, tmp_path):
    config = train_pb2.TrainConfig(fine_tune_checkpoint="gone")
    model_dir = str(pathlib.Path(checkpoint).parent)
    detector: Any = _Restores({})
    assert warm_start.plan_warm_start(detector, config, model_dir) is None
    assert warm_start.plan_warm_start(detector, train_pb2.TrainConfig(), None) is None


def _backboned(names: Dict[str, tf.Variable], backbone: Dict[str, tf.Variable]) -> Any:
    class Detector(_Restores):
        def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Any:
            return backbone if checkpoint_type == "detection" else names

    return Detector(names)


def test_share_of_the_backbone_and_least_share(tmp_path):
    slots = ["a/ExponentialMovingAverage", "a/Momentum", "b/RMSProp_1", "beta1_power"]
    values = {"a": [1.0], "b": [1.0, 2.0], "head/Momentum_rate": 1.0}
    path = save(tmp_path, {**values, **dict.fromkeys(slots, 1.0)})
    with tf.Graph().as_default():
        mine = {name: tf1.get_variable(name, [1]) for name in "abcd"}
        detector = _backboned(mine, {name: mine[name] for name in "abc"})
        config = train_pb2.TrainConfig(
            fine_tune_checkpoint=path, fine_tune_checkpoint_type="classification"
        )
        table = warm_start.plan_warm_start(detector, config, None)
        assert (table.backbone, table.backbone_restored) == (3, 1)
        assert table.unused == ["head/Momentum_rate"]
        assert table.unused_slots == slots
        assert "and 4 slots of optimizers and moving averages" in table.heading()
        assert "33% of the backbone (1 of 3 variables)" in table.heading()
        config.min_restored_share = 0.3
        assert warm_start.plan_warm_start(detector, config, None) is not None
        config.min_restored_share = 0.5
        with pytest.raises(ValueError, match=r"restores 33.3% of the backbone, less than(.|\n)*b:"):
            warm_start.plan_warm_start(detector, config, None)


V1, V2 = "FeatureExtractor/MobilenetV1", "FeatureExtractor/MobilenetV2"
HEAD = "BoxPredictor_0/ClassPredictor/biases"


def _planned(backbone: str, *, shape: int = 1, **settings: Any) -> warm_start.RestoreTable:
    """The table of a model with one layer of a backbone and a head."""
    config = train_pb2.TrainConfig(**settings)
    model = model_pb2.DetectionModel()
    model.ssd.feature_extractor.type = "ssd_mobilenet_v1"
    with tf.Graph().as_default():
        layer = tf1.get_variable(f"{backbone}/Conv2d_0/weights", [shape])
        names = {layer.op.name: layer}
        head = tf1.get_variable(HEAD, [3])
        detector = _backboned({**names, HEAD: head}, names)
        table = warm_start.plan_warm_start(detector, config, None, model)
    assert table is not None
    return table


@pytest.mark.parametrize(
    ("stored", "wanted", "shape", "remedy"),
    [
        (V2, V1, 1, "use the feature_extractor.type of the checkpoint's network"),
        ("FirstStageFeatureExtractor/MobilenetV1", V1, 1, "use the feature_extractor.type of"),
        (V1, "MobilenetV1", 1, "use --set train_config.fine_tune_checkpoint_type=detection"),
        ("MobilenetV1", V1, 1, "use --set train_config.fine_tune_checkpoint_type=classification"),
        (V1, V1, 2, "use the depth_multiplier and the other options of the feature extractor"),
    ],
)
def test_another_network_is_refused_by_name(tmp_path, stored, wanted, shape, remedy):
    """Also where the heads fit, which `load_all_detection_checkpoint_vars` restores."""
    others = {f"{stored}/Conv2d_{i}/weights/Momentum": [1.0] for i in range(3)}
    checkpoint = save(
        tmp_path, {f"{stored}/Conv2d_0/weights": [1.0], HEAD: [1.0, 2.0, 3.0], **others}
    )
    with pytest.raises(ConfigError) as refused:
        _planned(wanted, shape=shape, fine_tune_checkpoint=checkpoint)
    text = str(refused.value)
    assert text.startswith("train_config.fine_tune_checkpoint: no variable of the backbone")
    assert f"the checkpoint contains {stored} (1 variable)" in text
    of_extractor = "model.ssd.feature_extractor.type 'ssd_mobilenet_v1'"
    assert f"{of_extractor} needs {wanted} (1 variable)" in text
    assert f"Remedy: {remedy}" in text
    assert "num_classes" not in text and "heads" not in text and "\n" not in text


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_neutral_statistics_of_an_import_are_warned_of(tmp_path, caplog, marked, is_training):
    checkpoint = save(tmp_path, {"w": [1.0], **({NEUTRAL_STATISTICS: 7} if marked else {})})
    config = train_pb2.TrainConfig(fine_tune_checkpoint=checkpoint)
    with tf.Graph().as_default():
        weight = tf1.get_variable("w", [1])
        tf1.nn.fused_batch_norm(
            tf.zeros([1, 2, 2, 1]), weight, weight, weight, weight, is_training=is_training,
            exponential_avg_factor=0.5,
        )  # fmt: skip
        with caplog.at_level(logging.WARNING):
            table = warm_start.plan_warm_start(_Restores({"w": weight}), config, None)
    assert table is not None
    assert table.unused == []
    warned = [r.getMessage() for r in caplog.records if "7 layers have neutral" in r.getMessage()]
    assert len(warned) == (marked and is_training)
