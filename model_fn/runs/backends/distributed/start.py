"""Where a TF2 loop starts: at a checkpoint of any backend, or where an Estimator would."""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np

from estimator_det.compat import tf1
from model_fn.checkpoints.errors import RunError
from model_fn.checkpoints.repair import gone_explained
from model_fn.checkpoints.variables import AVERAGE_SUFFIX, check_variables
from model_fn.runs import cluster
from model_fn.runs.backends.base import RunSettings
from model_fn.training.initial_values import initial_values
from model_fn.training.loop_step import LoopStep


def start(loop_step: LoopStep, settings: RunSettings, input_fn: Callable[..., Any]) -> None:
    """Gives the variables of a loop their values.

    Args:
        loop_step: Built.
        settings: Of the run.
        input_fn: Of training.

    Raises:
        RunError: if the checkpoint to resume from does not fit the configuration.
        ConfigError: if a checkpoint to fine-tune from does not.
    """
    # The same assignments in every worker, in the same order: some count as communication.
    values = loop_step.values()
    latest = tf1.train.latest_checkpoint(settings.model_dir)
    if latest is not None:
        values.update(_stored(latest, loop_step))
    else:
        values.update(initial_values(settings.pipeline_config, input_fn, settings.seed))
        for name in values:
            if name.endswith(AVERAGE_SUFFIX):  # They start where variables do.
                values[name] = values[name[: -len(AVERAGE_SUFFIX)]]
    loop_step.restore(values)
    if cluster.is_in_cluster():
        # The others may not see the folder, and without a seed they start elsewhere.
        loop_step.agree()


def _stored(checkpoint: str, loop_step: LoopStep) -> Dict[str, np.ndarray]:
    variables = loop_step.variables()
    with gone_explained(checkpoint):
        reader = tf1.train.load_checkpoint(checkpoint)
        names = set(reader.get_variable_to_shape_map())
        averages = [name for name in variables if name.endswith(AVERAGE_SUFFIX)]
        if averages and not names.intersection(averages):
            raise RunError(
                f"the checkpoint {checkpoint} contains no moving averages to resume with. Set "
                "train_config.optimizer.use_moving_average=false, or choose another model_dir"
            )
        check_variables(checkpoint, variables)
        wanted = [*variables, *names.intersection(loop_step.own_variables())]
        return {name: reader.get_tensor(name) for name in wanted}
