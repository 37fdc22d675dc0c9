"""Names of variables in checkpoints: compared with a model, and the networks that have them."""

from __future__ import annotations

import collections
import logging
import re
from typing import Dict, Iterable, List, Mapping, Optional

from estimator_det.compat import tf, tf1
from estimator_det.config.text import nearest
from estimator_det.console.printing import counted, listed
from estimator_det.errors import RunError
from estimator_det.nets.quantization import is_range
from estimator_det.protos import model_pb2
from model_fn.checkpoints.explanations import HEADS, Shapes, explain_shapes

_LOG = logging.getLogger(__name__)

AVERAGE_SUFFIX = "/ExponentialMovingAverage"
MAX_LISTED_VARIABLES = 10  # in an error
_NAMED_UNUSED = 3  # in a warning
_EXTRACTOR = "FeatureExtractor"  # how the scopes of extractors end in a detector
_SCOPES_SHOWN = 3
# An int64 scalar in the checkpoint: how many layers have mean 0 and variance 1 because the file
# they were imported from had them folded into convolutions.
NEUTRAL_STATISTICS = "imported/neutral_batch_norm"

# Variables that training keeps beside each variable, by the last part of the name, or once.
SLOT = re.compile(
    r"/(Momentum|RMSProp(_\d+)?|Adam(_\d+)?|Adagrad|Ftrl(_\d+)?|ExponentialMovingAverage)$"
    r"|^(.*/)?beta[12]_power$|^global_step$|^fake_quantization_step$"
    # In object-based checkpoints.
    r"|/\.OPTIMIZER_SLOT/|^(optimizer|save_counter|step)/|^_CHECKPOINTABLE_OBJECT_GRAPH$"
)
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""End of keys in object-based checkpoints."""
# Bias corrections of the moving averages of ranges.
_CORRECTION = re.compile(r"/(biased|local_step)$")


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


def unused_variables(stored: Iterable[str], wanted: Iterable[str]) -> List[str]:
    """Names in a checkpoint that a model does not read, sorted.

    Of variables that are read from their moving averages, neither the variable nor the average is
    unused. The mark of imported checkpoints is not listed.
    """
    read = {name for each in wanted for name in (each, each.removesuffix(AVERAGE_SUFFIX))}
    return sorted(set(stored) - read - {NEUTRAL_STATISTICS})


def check_resumable(
    checkpoint: str, variables: Mapping[str, tf.Variable], model: model_pb2.DetectionModel
) -> None:
    """Checks that a training with these variables, by checkpoint name, can resume."""
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    averages = [name for name in variables if name.endswith(AVERAGE_SUFFIX)]
    if averages and not stored.keys() & averages:
        raise RunError(
            f"the checkpoint {checkpoint} contains no moving averages to resume with. Set "
            "train_config.optimizer.use_moving_average=false, or choose another model_dir"
        )
    check_variables(
        checkpoint,
        variables,
        model,
        remedy="Use the pipeline.config in its folder, or choose another model_dir",
    )


def check_variables(
    checkpoint: str,
    variables: Mapping[str, tf.Variable],
    model: Optional[model_pb2.DetectionModel] = None,
    *,
    remedy: str = "Use the pipeline.config of the training, or another checkpoint",
) -> None:
    """Checks that the checkpoint contains each name with the shape of its variable.

    Further variables of the checkpoint, except variables of training, are logged as a warning. The
    error ends with options of the `model` that explain it, or with the remedy.
    """
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    wanted = {name: variable.shape.as_list() for name, variable in sorted(variables.items())}
    faults: List[str] = []
    for name, shape in wanted.items():
        if name not in stored:
            faults.append(f"{name} is missing{nearest(name, list(stored))}")
        elif list(stored[name]) != shape:
            faults.append(f"{name} has shape {list(stored[name])}, the model needs {shape}")
        if len(faults) > MAX_LISTED_VARIABLES:
            break
    if not faults:
        check_types(checkpoint, variables)
        _warn_of_unused(checkpoint, stored, wanted)
        return
    ellipsis = "\n  …" if len(faults) > MAX_LISTED_VARIABLES else ""
    shown = "\n  ".join(faults[:MAX_LISTED_VARIABLES])
    averages = [name for name in variables if name.endswith(AVERAGE_SUFFIX)]
    options = []
    if model is not None:
        shapes = [under_own_names(each, variables) for each in (stored, wanted)]
        options = explain_shapes(model, *shapes)
    if averages and not any(name.endswith(AVERAGE_SUFFIX) for name in stored):
        remedy = (
            "The checkpoint contains no moving averages. Set eval_config.use_moving_averages=false"
        )
    elif any(map(is_range, variables)) and not any(map(is_range, stored)):
        remedy = (
            "The checkpoint is of a float model. Train it with the graph_rewriter of the "
            "configuration first, or set graph_rewriter=null"
        )
    elif options:
        remedy = "\n".join(options)
    raise RunError(
        f"the checkpoint {checkpoint} does not fit the configuration:\n  "
        f"{shown}{ellipsis}\n{remedy}"
    )


def check_types(checkpoint: str, variables: Mapping[str, tf.Variable]) -> None:
    """Checks the precision of variables that a checkpoint contains, by their names in it."""
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_dtype_map()
    for name, variable in sorted(variables.items()):
        theirs, ours = stored[name], variable.dtype.base_dtype
        if theirs.is_floating and theirs != ours:
            raise RunError(
                f"{name} in the checkpoint {checkpoint} is {theirs.name}, the model needs "
                f"{ours.name}. Write its weights in {ours.name}: estimator-det import "
                f"{checkpoint} --from checkpoint --pipeline_config_path ITS_CONFIG --output_dir NEW"
            )


def under_own_names(shapes: Shapes, variables: Mapping[str, tf.Variable]) -> Shapes:
    """Shapes by our names of the variables, as explanations need; keys may be others.

    Object-based checkpoints have paths, and evaluations read averages of weights.
    """
    others = (VALUE_SUFFIX, AVERAGE_SUFFIX)
    names = {key: each.op.name for key, each in variables.items() if key.endswith(others)}
    return {names.get(name, name): shape for name, shape in shapes.items()} if names else shapes


def _warn_of_unused(checkpoint: str, stored: Iterable[str], wanted: Iterable[str]) -> None:
    unused = [
        name
        for name in unused_variables(stored, wanted)
        if not SLOT.search(name) and not (is_range(name) and _CORRECTION.search(name))
    ]
    if not unused:
        return
    _LOG.warning(
        "The checkpoint %s contains %d variables that the model has no place for, and ignores: "
        "%s. If it detects nothing, use the pipeline.config of the training",
        checkpoint,
        len(unused),
        listed(unused, _NAMED_UNUSED),
    )


def num_neutral_layers(checkpoint: str) -> int:
    """Layers of a checkpoint with neutral statistics; 0 without the mark."""
    reader = tf1.train.NewCheckpointReader(checkpoint)
    if not reader.has_tensor(NEUTRAL_STATISTICS):
        return 0
    return int(reader.get_tensor(NEUTRAL_STATISTICS))


def network_scopes(names: Iterable[str]) -> Dict[str, int]:
    """Scope -> variables of the networks, without heads and slots; the largest first.

    In a detector these are the scopes in its extractors, such as `FeatureExtractor/MobilenetV2`;
    in a classifier its outermost scopes.
    """
    kept = [name for name in names if HEADS not in name and not SLOT.search(name)]
    detector_names = [name for name in kept if is_of_detector(name)]
    depth = 2 if detector_names else 1
    counts = collections.Counter(
        "/".join(name.split("/")[:depth]) for name in detector_names or sorted(kept)
    )
    return dict(counts.most_common())


def is_of_detector(name: str) -> bool:
    """True if a variable or scope is in an extractor of a detector."""
    outermost, inner, _ = name.partition("/")
    return bool(inner) and outermost.endswith(_EXTRACTOR)


def scopes_text(scopes: Mapping[str, int]) -> str:
    """The largest scopes with their numbers of variables."""
    shown = [f"{scope} ({counted(count, 'variable')})" for scope, count in scopes.items()]
    if not shown:
        return "no variable of a network"
    return listed(shown, _SCOPES_SHOWN) + (" scopes" if len(shown) > _SCOPES_SHOWN else "")
