"""Golden numbers of the TF2 line, in the same form as for the TF1 line.

Variables have the keys of object-based checkpoints. `goldens` describes the layout of the folder;
here, the images are in the folder above.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

# Predictions of the Object Detection API that repeat others, or that are not ours.
_REPEATED = ("image_shape", "final_anchors", "proposal_boxes_normalized", "num_proposals")
# Predictions of three stages are on record with their detections.
_OF_DETECTIONS = ("detection_", "raw_detection_", "num_detections", "mask_predictions")
_NOT_OURS = ("mask_predictions", "detection_boxes_strided")
_LOSS_KEYS = ("losses", "total", "regularization_sum")
# A change of layers on record, and the setting with its effect.
_NO_DROPOUT = "dropout / stochastic depth rates set to 0: "
_NO_DROP_CONNECT = (
    'feature_extractor.custom_parameters = fields { key: "drop_connect_rate" '
    "value { number_value: 0 } }"
)
_LABEL_MAP = "keypoint_label_map_path = "
_NARROW_IMAGE = re.compile(r"images_300\[:, :, :(\d+), :\]")

Arrays = Dict[str, np.ndarray]
Record = Dict[str, Any]


def read_json(path: pathlib.Path) -> Optional[Record]:
    """The content of a file; None if there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def image_width(record: Record) -> int:
    """Columns of the images that a configuration was measured with."""
    narrow = _NARROW_IMAGE.fullmatch(record["image"])
    return int(narrow[1]) if narrow else 300


def is_graph(graph: Record) -> bool:
    """True if the facts of a graph are of the TF2 line, where variables are rows."""
    return isinstance(graph.get("variables"), list)  # an error has none


def scales(graph: Record) -> Dict[str, float]:
    """Factor of the value of each variable."""
    return {key: scale for key, _, _, _, scale in graph["variables"]}


def graph_record(graph: Record, numeric: Optional[Record]) -> Record:
    """The facts of a graph."""
    sample = graph.get("anchors_sample")
    shapes = _renamed(graph["prediction_shapes"])
    maps = [shapes[key] for key in shapes if key.startswith("feature_maps/")]
    overrides = graph["overrides_native"]
    if numeric is not None and not graph["native"]:
        overrides = numeric["overrides_eval"]
    record = {
        "config": graph["config"],
        "builds_train": True,
        "variables": {key: [shape, trains] for key, shape, trains, _, _ in graph["variables"]},
        "update_ops_count": graph["num_moving_statistics_updated_in_training"],
        "prediction_dict_train": {"feature_maps": maps},
        "num_anchors": graph.get("num_anchors"),
        "anchors_sample": sample and {**sample, "rows20": sample["rows"]},
        "overrides": overrides,
    }
    if graph["model_type"] == "ssd":  # Keras counts penalties of weight 0, too.
        record["num_regularization_losses"] = graph["num_regularization_losses"]
    if numeric and numeric.get("train_ok"):
        record["loss_keys"] = [*numeric["train"]["losses"]]
    return record


def _by_key(values: np.ndarray, graph: Record) -> Dict[str, float]:
    """Numbers by the key of the variable, without those that are not there."""
    pairs = zip((row[0] for row in graph["variables"]), values.tolist())
    return {key: value for key, value in pairs if not np.isnan(value)}


def numeric_record(numeric: Record, arrays: Mapping[str, np.ndarray], graph: Record) -> Record:
    """The values of an evaluation and of a pass in training."""
    predictions = _renamed(numeric["predictions"])
    repeated = {*_REPEATED, *(key.replace("::", "/") for key in numeric["identical_tensors"])}
    record = {
        **numeric,
        "overrides": numeric["overrides_eval"],
        "feature_maps": {
            _key(key): stats
            for key, stats in numeric["predictions"].items()
            if "axis" not in stats and f"{key.replace('/', '::')}__first8" in arrays
        },
        "postprocess": {
            key: stats
            for key, stats in numeric["postprocess"].items()
            if key.startswith(_OF_DETECTIONS) and key not in _NOT_OURS
        },
        "predictions": {
            key: _with_rows(stats)
            for key, stats in predictions.items()
            if "axis" in stats and key not in repeated and not key.startswith(_OF_DETECTIONS)
        },
    }
    if not numeric.get("train_ok"):
        return record
    train = numeric["train"]
    gradients = _by_key(arrays["train__grad_norms"], graph)
    record["trainable_without_gradient"] = train["trainable_without_gradient"]
    record["train"] = {
        **{key: train[key] for key in _LOSS_KEYS},
        "overrides": _settings(numeric["overrides_train"]),
        "predictions": {
            key: _with_rows(stats)
            for key, stats in _renamed(train["predictions"]).items()
            if key in record["predictions"]
        },
        "grad_norms": gradients,
        "global_grad_norm_total_loss": train["global_grad_norm"],
        "moving_norms": _by_key(arrays["train__moving_norms_after"], graph),
    }
    return record


def with_files(overrides: Sequence[str], folder: pathlib.Path) -> Sequence[str]:
    """Overrides in which the label map of keypoints has its path."""
    return [line.replace(_LABEL_MAP, f"{_LABEL_MAP}{folder}/") for line in overrides]


def _settings(overrides: Sequence[str]) -> Sequence[str]:
    return [_NO_DROP_CONNECT if line.startswith(_NO_DROPOUT) else line for line in overrides]


def _key(recorded: str) -> str:
    """Key of a prediction; feature maps have the same one in all networks."""
    return recorded.replace("::", "/").replace("extracted_features/", "feature_maps/")


def _renamed(predictions: Record) -> Record:
    return {_key(recorded): stats for recorded, stats in predictions.items()}


def _with_rows(stats: Record) -> Record:
    """Statistics of a map [B, h, w, C] with the shape of its pixels, [B, h * w, C]."""
    batch, *sides, columns = stats["shape"]
    return {**stats, "shape": [batch, math.prod(sides), columns]} if len(sides) == 2 else stats


def numeric_arrays(arrays: Mapping[str, np.ndarray], record: Record) -> Arrays:
    """The arrays of an evaluation, with the numbers of all rows of predictions."""
    renamed = {}
    for name, array in arrays.items():
        key, part = name.partition("__first8")[:2]
        if part and not key.startswith("train__"):
            name = f"fm__{_key(key).replace('/', '_')}{part}"
        renamed[name] = array
    for key, stats in record["predictions"].items():
        if key in renamed:
            count = renamed[key].shape[stats["axis"]]
            renamed.setdefault(f"{key}__idx", np.arange(count))
    return renamed


def trace_record(trace: Record, arrays: Mapping[str, np.ndarray], graph: Record) -> Record:
    """Steps of an optimizer."""
    norms = _by_key(arrays["norms_after"], graph)
    trainable = {key for key, _, trains, _, _ in graph["variables"] if trains}
    optimizer = "train_config.optimizer.momentum_optimizer"
    overrides: Sequence[str] = [
        *_settings(trace["overrides"]),
        f"{optimizer}.learning_rate = constant {trace['learning_rate']}",
        f"{optimizer}.momentum_optimizer_value = 0.9",
        f"train_config.gradient_clipping_by_norm = {trace['gradient_clipping_by_norm']}",
    ]
    return {
        **trace,
        "overrides": overrides,
        "global_step_after": trace["steps"],
        "num_slots": trace["checkpoint"]["num_slot_keys"],
        "slot_names_sample": [],
        "weight_norms_after": {key: norm for key, norm in norms.items() if key in trainable},
        "bn_norms_after": {key: norm for key, norm in norms.items() if key not in trainable},
    }
