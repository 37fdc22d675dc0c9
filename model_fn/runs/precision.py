"""The precision of a run: types of its network, and machines that emulate them."""

from __future__ import annotations

import copy
import logging
from typing import Dict

from estimator_det.compat import private, tf
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2
from inputs import machine
from model_fn.runs.options import (
    BFLOAT16_CONVOLUTIONS,
    FLOAT32,
    MIXED_BFLOAT16,
    MIXED_FLOAT16,
    TrainOptions,
)
from model_fn.training import step

_LOG = logging.getLogger(__name__)
_TYPES: Dict[str, step.NetworkTypes] = {
    FLOAT32: step.FLOAT32,
    BFLOAT16_CONVOLUTIONS: step.NetworkTypes(convolutions=tf.bfloat16),
    MIXED_BFLOAT16: step.NetworkTypes(tf.bfloat16),
    MIXED_FLOAT16: step.NetworkTypes(tf.float16),
}


def network_types(options: TrainOptions) -> step.NetworkTypes:
    """Types of a training that is not for a TPU."""
    return _TYPES[options.precision or FLOAT32]


def with_precision(
    config: pipeline_pb2.TrainEvalPipelineConfig, options: TrainOptions
) -> pipeline_pb2.TrainEvalPipelineConfig:
    """The configuration, on a TPU with the options' precision; quantized networks need float32.

    Warns of a type that this machine only emulates.
    """
    is_narrow = options.precision not in (None, FLOAT32)
    if is_narrow and config.graph_rewriter.HasField("quantization"):
        raise UsageError(
            f"precision is {options.precision}, and graph_rewriter.quantization needs float32; "
            "leave it out"
        )
    if options.is_for_tpu:
        if options.precision is not None:
            config = copy.deepcopy(config)
            config.train_config.use_bfloat16 = is_narrow
    elif is_narrow and not tf.config.list_physical_devices("GPU"):
        _warn_if_emulated(str(options.precision))
    return config


def _warn_if_emulated(precision: str) -> None:
    if precision == MIXED_FLOAT16:
        better = f"Use {MIXED_BFLOAT16}, or leave precision out"
    elif not (machine.has_bfloat16() and private.has_onednn()):
        better = "Leave precision out"
    else:
        return
    _LOG.warning(
        "precision is %s, which TensorFlow computes by emulation here, many times as slowly as "
        "float32; without oneDNN, a part of the gradients of kernels is lost, too. %s",
        precision,
        better,
    )
