"""Which variables of a graph a checkpoint gives, and which it lacks."""

from __future__ import annotations

from typing import Dict, List

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import nearest

AVERAGE_SUFFIX = "/ExponentialMovingAverage"
LISTED_VARIABLES = 10  # an error lists so many of the variables that do not fit


def restore_names(use_moving_averages: bool) -> Dict[str, tf.Variable]:
    """Checkpoint name -> variable for every variable of the current graph.

    With moving averages, trainable variables are read from their averages; the statistics of
    batch norm, which have none, are read as they are.
    """
    averaged = set()
    if use_moving_averages:
        averaged = {variable.op.name for variable in tf1.trainable_variables()}
    return {
        name + AVERAGE_SUFFIX if name in averaged else name: variable
        for name, variable in ((variable.op.name, variable) for variable in tf1.global_variables())
    }


def check_variables(checkpoint: str, variables: Dict[str, tf.Variable]) -> None:
    """Fails unless the checkpoint holds each name with its variable's shape.

    Raises:
        ValueError: listing what is missing or of another shape.
    """
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    faults: List[str] = []
    for name, variable in sorted(variables.items()):
        shape = variable.shape.as_list()
        if name not in stored:
            faults.append(f"{name} is missing{nearest(name, list(stored))}")
        elif list(stored[name]) != shape:
            faults.append(f"{name} has shape {list(stored[name])}, the model wants {shape}")
        if len(faults) > LISTED_VARIABLES:
            break
    if not faults:
        return
    more = "\n  …" if len(faults) > LISTED_VARIABLES else ""
    shown = "\n  ".join(faults[:LISTED_VARIABLES])
    advice = ""
    if any(AVERAGE_SUFFIX in name for name in variables) and not any(
        name.endswith(AVERAGE_SUFFIX) for name in stored
    ):
        advice = (
            "\nThe checkpoint holds no moving averages: was it trained without? Remedy: "
            "eval_config.use_moving_averages=false"
        )
    raise ValueError(
        f"the checkpoint {checkpoint} does not fit the configuration:\n  {shown}{more}{advice}"
    )
