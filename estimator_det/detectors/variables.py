"""Variables and operations of a detector's graph: what tf-slim collects, and what a warm start
restores.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, error, warning
from estimator_det.protos import train_pb2

_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")


def collection_of_replica(key: str) -> List[Any]:
    """Returns the tensors or operations of a collection that belong to this replica.

    Replicas of a `MirroredStrategy` build into one graph and share its collections; all but the
    first one build in a name scope `replica_N`. The body of a loop, e.g. over parts of a batch,
    shares the collections of the outer graph.
    """
    graph = tf1.get_default_graph()
    members = [member for member in tf1.get_collection(key) if member.graph is graph]
    if not tf1.distribute.has_strategy():
        return members
    replica = _replica(graph.get_name_scope() + "/")
    return [member for member in members if _replica(member.name) == replica]


def _replica(name: str) -> int:
    match = _REPLICA.search(name)
    return int(match[1]) if match else 0


CHECKPOINT_TYPES = ("classification", "detection", "full")


@rules(train_pb2.TrainConfig)
def _check_fine_tuning(config: train_pb2.TrainConfig, at: str) -> Iterator[Problem]:
    kind, at = config.fine_tune_checkpoint_type, f"{at}.fine_tune_checkpoint_type"
    if kind and kind not in CHECKPOINT_TYPES:
        what = f"is not known{nearest(kind, list(CHECKPOINT_TYPES))}"
        remedy = f"use one of {', '.join(CHECKPOINT_TYPES)}"
        if kind == "fine_tune":  # in files for CenterNet that are older than 2021
            what, remedy = "is an old name of 'detection'", f"--set {at}=detection"
        yield error(at, f"{quoted(kind)} {what}", remedy)
    # The older field that says the same is reported among the deprecated ones.
    if config.fine_tune_checkpoint and not (kind or config.HasField("from_detection_checkpoint")):
        yield warning(at, "is not set; 'classification' is used", f"--set {at}=classification")


def variables_to_restore(
    checkpoint_type: str,
    load_all: bool,
    extractor_scopes: Sequence[str],
    classifier_name: Callable[[str], Optional[str]],
) -> Dict[str, tf.Variable]:
    """Maps checkpoint names to the variables that exist at the moment.

    "classification" means the extractor's variables, as a classifier's checkpoint names them,
    "detection" the extractor's variables, with `load_all` all of them, and "full" all variables.
    If two have the same name in a classifier, the variable of the last scope is restored;
    `classifier_name` returns None for variables that a classifier does not have.
    """
    if checkpoint_type not in CHECKPOINT_TYPES:
        raise ValueError(f"{checkpoint_type!r} is not known; use one of {CHECKPOINT_TYPES}")
    step = tf1.train.get_global_step()
    variables = {v.op.name: v for v in tf1.global_variables() if v is not step}
    if checkpoint_type == "full" or (checkpoint_type == "detection" and load_all):
        return variables
    inner = {
        name: variable
        for scope in extractor_scopes
        for name, variable in variables.items()
        if name.startswith(f"{scope}/")
    }
    if checkpoint_type == "detection":
        return inner
    renamed = {classifier_name(name): variable for name, variable in inner.items()}
    return {name: variable for name, variable in renamed.items() if name is not None}
