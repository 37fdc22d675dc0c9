"""Where a TF2 loop starts: the values that an Estimator starts with, for the same seed."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import make_detector
from model_fn.training import step, warm_start


def initial_values(
    pipeline_config: Any,
    input_fn: Callable[[], tf.data.Dataset],
    seed: Optional[int],
) -> Dict[str, np.ndarray]:
    """Variables of the network by name, initialized or from `fine_tune_checkpoint`.

    Random numbers of a graph depend on its seed and on the number of operations before; so the
    graph is built as an Estimator builds it, up to the loss.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        input_fn: Of training; its data are not read.
        seed: Of the graph; None for any.

    Raises:
        ConfigError: as `warm_start.plan_warm_start`.
    """
    train_config = pipeline_config.train_config
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(seed)
        tf1.train.create_global_step()
        features, labels = tf1.data.make_initializable_iterator(input_fn()).get_next()
        detector = make_detector(pipeline_config.model, is_training=True)
        step.forward(
            detector, features, labels, add_regularization=train_config.add_regularization_loss
        )
        table = warm_start.plan_warm_start(detector, train_config, None, pipeline_config.model)
        if table:
            warm_start.initialize_from(table)
        session.run(tf1.global_variables_initializer())
        variables = {each.op.name: each for each in tf1.global_variables()}
        values: Dict[str, np.ndarray] = session.run(variables)
    return values
