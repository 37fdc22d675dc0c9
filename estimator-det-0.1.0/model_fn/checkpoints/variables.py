"""Names of variables in checkpoints, and whether a checkpoint fits a model."""

from __future__ import annotations

from typing import Dict, List

from estimator_det.compat import tf, tf1
from estimator_det.config.text import nearest
from model_fn.checkpoints.errors import RunError

AVERAGE_SUFFIX = "/ExponentialMovingAverage"
MAX_LISTED_VARIABLES = 10  # in an error


def inference_variables(use_moving_averages: bool) -> Dict[str, tf.Variable]:
    """Checkpoint name -> variable for every variable of the current graph.

    With moving averages, trainable variables are read from their averages. The statistics of batch
    norm have none and are read from their own names.
    """
    averaged = set()
    if use_moving_averages:
        averaged = {variable.op.name for variable in tf1.trainable_variables()}
    return {
        name + AVERAGE_SUFFIX if name in averaged else name: variable
        for name, variable in ((variable.op.name, variable) for variable in tf1.global_variables())
    }


def check_variables(checkpoint: str, variables: Dict[str, tf.Variable]) -> None:
    """Checks that the checkpoint contains each name with the shape of its variable.

    Raises:
        RunError: if one is missing or has another shape.
    """
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    faults: List[str] = []
    for name, variable in sorted(variables.items()):
        shape = variable.shape.as_list()
        if name not in stored:
            faults.append(f"{name} is missing{nearest(name, list(stored))}")
        elif list(stored[name]) != shape:
            faults.append(f"{name} has shape {list(stored[name])}, the model needs {shape}")
        if len(faults) > MAX_LISTED_VARIABLES:
            break
    if not faults:
        return
    more = "\n  …" if len(faults) > MAX_LISTED_VARIABLES else ""
    shown = "\n  ".join(faults[:MAX_LISTED_VARIABLES])
    averages = [name for name in variables if name.endswith(AVERAGE_SUFFIX)]
    if averages and not any(name.endswith(AVERAGE_SUFFIX) for name in stored):
        remedy = (
            "The checkpoint contains no moving averages. Set eval_config.use_moving_averages=false"
        )
    else:
        remedy = "Use the pipeline.config of the training, or another checkpoint"
    raise RunError(
        f"the checkpoint {checkpoint} does not fit the configuration:\n  {shown}{more}\n{remedy}"
    )
