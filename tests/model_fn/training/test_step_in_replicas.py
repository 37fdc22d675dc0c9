"""The training step of the model_fn, in a TF2 loop on two replicas."""

from __future__ import annotations

import json
from typing import Any, Dict

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import estimator, tf, tf1, track_tf1_style_variables
from estimator_det.detectors.base import make_detector
from estimator_det.protos import pipeline_pb2
from inputs import schema
from model_fn.model_fn import create_model_fn
from model_fn.training import step
from model_fn.training.optimizers import make_optimizer
from model_fn.training.train_op import make_unguarded_train_op
from tests import small_extractor
from tests.detectors import configs
from tests.programs.forking import Forker

STEPS = 2


def _config(inplace: bool) -> Any:
    config = text_format.Parse(
        f"""
        model {{ {configs.SMALL_SSD} }}
        train_config {{
          gradient_clipping_by_norm: 0
          optimizer {{
            momentum_optimizer {{
              learning_rate {{ constant_learning_rate {{ learning_rate: 0.001 }} }}
            }}
            use_moving_average: false
          }}
        }}
        train_input_reader {{}}
        """,
        pipeline_pb2.TrainEvalPipelineConfig(),
    )
    config.model.ssd.inplace_batchnorm_update = inplace
    return config


def _arrays() -> Any:
    """Features and labels of a batch; to be called eagerly."""
    given = configs.groundtruth(padding=1)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32)
    features = {schema.IMAGE: pixels, schema.TRUE_IMAGE_SHAPE: np.int32([[64, 64, 3]] * 2)}
    labels = {
        schema.NUM_BOXES: np.int32([2, 2]),
        schema.BOXES: given.boxes.numpy(),
        schema.CLASSES: given.classes.numpy(),
        schema.WEIGHTS: given.weights.numpy(),
    }
    return features, labels


def _by_model_fn(config: Any, arrays: Any) -> Dict[str, Any]:
    """Losses of each step, and variables before the first and after the last."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        batch = tf.nest.map_structure(tf.constant, arrays)
        spec = create_model_fn(config)(*batch, estimator.ModeKeys.TRAIN, {})
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name: v for v in tf1.global_variables()}
        start = session.run(variables)
        losses = [float(session.run(spec.train_op)) for _ in range(STEPS)]
        return {"start": start, "losses": losses, "end": session.run(variables)}


class _Network(tf.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.detector = make_detector(config.model, is_training=True)

    @track_tf1_style_variables
    def forward(self, features: Any, labels: Any) -> step.Forward:
        return step.forward(self.detector, features, labels, add_regularization=True)


def _by_strategy(config: Any, arrays: Any, start: Dict[str, np.ndarray]) -> Dict[str, Any]:
    """The same on two replicas, each of which is fed the whole batch."""
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(devices) == 2
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        network = _Network(config)
        global_step = tf.Variable(
            0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        optimizer, _ = make_optimizer(config.train_config.optimizer, tf.constant(0, tf.int64))
    updates = set()

    def replica_step(features: Any, labels: Any) -> tf.Tensor:
        passed = network.forward(features, labels)
        updates.add(len(network.detector.updates()))
        # Gradients of replicas are summed.
        make_unguarded_train_op(
            passed.losses[step.TOTAL_LOSS] / strategy.num_replicas_in_sync,
            optimizer,
            global_step,
            config.train_config,
            network.detector.updates(),
            network.trainable_variables,
        )
        return passed.losses[step.TOTAL_LOSS]

    @tf.function(autograph=False)
    def run() -> Any:
        batch = tf.nest.map_structure(tf.constant, arrays)
        return strategy.experimental_local_results(strategy.run(replica_step, args=batch))

    run.get_concrete_function()  # creates the variables
    for variable in network.variables:
        variable.assign(start[variable.name.rpartition(":")[0]])
    losses = [[float(loss) for loss in run()] for _ in range(STEPS)]
    names = [variable.name.rpartition(":")[0] for variable in network.variables]
    assert len(set(names)) == len(names)
    values = {name: variable.numpy() for name, variable in zip(names, network.variables)}
    return {"losses": losses, "end": values, "step": int(global_step.numpy()), "updates": updates}


def _compare() -> Dict[str, Any]:
    """Run in a process of its own: logical devices are made before TensorFlow starts."""
    small_extractor.use(pytest.MonkeyPatch())
    found: Dict[str, Any] = {}
    arrays = _arrays()
    for inplace in (False, True):
        config = _config(inplace)
        expected = _by_model_fn(config, arrays)
        made = _by_strategy(config, arrays, expected["start"])
        model = {n for n in expected["end"] if not n.endswith("/Momentum") and n != "global_step"}
        moved = [
            name
            for name in model
            if "moving_" in name and not np.array_equal(made["end"][name], expected["start"][name])
        ]
        found[str(inplace)] = {
            "names": sorted(model ^ set(made["end"])),
            "losses": [expected["losses"], made["losses"]],
            "step": made["step"],
            "updates": sorted(made["updates"]),
            "statistics": [len(moved), sum("moving_" in name for name in model)],
            "difference": max(
                float(np.abs(made["end"][name] - expected["end"][name]).max())
                / max(float(np.abs(expected["end"][name]).max()), 1e-3)
                for name in model
            ),
        }
    return found


@pytest.fixture(scope="module")
def compared(forker: Forker) -> Dict[str, Any]:
    code = (
        "from estimator_det.compat import tf\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],"
        " [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "import json\n"
        f"from {__name__} import _compare\n"
        "print(json.dumps(_compare()))"
    )
    run = forker.program(code)
    assert run.wait() == 0, run.output()
    found: Dict[str, Any] = json.loads(run.output().splitlines()[-1])
    return found


@pytest.mark.parametrize("inplace", ["False", "True"])
def test_a_replica_takes_the_step_of_the_model_fn(compared: Dict[str, Any], inplace: str) -> None:
    found = compared[inplace]
    # The variables of the model, each once; and each replica's own updates.
    assert found["names"] == []
    assert len(found["updates"]) == 1
    moved, total = found["statistics"]
    assert moved == total > 0
    assert found["step"] == STEPS
    expected, losses = found["losses"]
    for number in range(STEPS):
        # Equal on both replicas: penalties of one do not count in the other.
        np.testing.assert_allclose(losses[number], expected[number], rtol=1e-4)
    assert found["difference"] < 1e-3
