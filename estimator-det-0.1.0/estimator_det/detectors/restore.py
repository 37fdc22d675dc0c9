"""Which variables a warm start restores, and their names in the checkpoint."""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.config.check import CHECKPOINT_TYPES
from estimator_det.config.text import ConfigError


def variables_to_restore(
    checkpoint_type: str,
    load_all: bool,
    extractor_scopes: Sequence[str],
    classifier_name: Callable[[str], Optional[str]],
) -> Dict[str, tf.Variable]:
    """Checkpoint name -> variable, of the variables that exist so far.

    Args:
        checkpoint_type: "classification": those of the extractor, as a classifier's checkpoint
            names them. "detection": those of the extractor. "full": all.
        load_all: Whether "detection" means all variables as well.
        extractor_scopes: Scopes of the extractor; of variables with the same name in a
            classifier, that of the last scope is restored.
        classifier_name: Name of an extractor's variable in a detector -> in a classifier; None:
            not there.

    Raises:
        ConfigError: if the type is another.
    """
    if checkpoint_type not in CHECKPOINT_TYPES:
        raise ConfigError(
            f"fine_tune_checkpoint_type {checkpoint_type!r} is not known; "
            f"it must be one of {list(CHECKPOINT_TYPES)}"
        )
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
