"""Which models attend to features of other images, and what their `context_config` must be."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from estimator_det.config.fields import no_effect
from estimator_det.config.problem import Problem, error
from estimator_det.protos import faster_rcnn_pb2


def context_shape(model: Any) -> Optional[Tuple[int, int]]:
    """Number of context features of an image, and their length; None without attention."""
    config = model.faster_rcnn.context_config
    if not (model.faster_rcnn.HasField("context_config") and config.use_long_term_attention):
        return None
    return config.max_num_context_features, config.context_feature_length


def check_context_reader(reader: Any, model: Any, path: str) -> Iterator[Problem]:
    """An error where an `InputReader` message loads other context than a model takes."""
    if context_shape(model) is None:
        for field in ("load_context_features", "load_context_image_ids"):
            if getattr(reader, field):
                yield error(
                    f"{path}.{field}",
                    "the model takes no context features: it has no context_config with "
                    "use_long_term_attention",
                    "remove it",
                )
    elif not reader.load_context_features:
        yield error(
            f"{path}.load_context_features",
            "is not set, and the model needs context features",
            "set it to true; context_config without use_long_term_attention needs none",
        )


def check_context(model: Any, path: str) -> Iterator[Problem]:
    """Problems of the `context_config` of a `FasterRcnn` message, if it has one."""
    if not model.HasField("context_config"):
        return
    config, path = model.context_config, f"{path}.context_config"
    if model.number_of_stages == 1:
        yield error(path, "needs a second stage, which attends", "use 2 stages, or remove it")
    elif model.second_stage_box_predictor.HasField("rfcn_box_predictor"):
        yield error(
            path,
            "rfcn_box_predictor has no features of single boxes, which attend",
            "use mask_rcnn_box_predictor, or remove it",
        )
    if config.attention_position == faster_rcnn_pb2.ATTENTION_DEFAULT:
        yield error(
            f"{path}.attention_position",
            "ATTENTION_DEFAULT is no position",
            "set it to POST_BOX_CLASSIFIER or POST_RPN",
        )
    if not (config.use_long_term_attention or config.use_self_attention):
        yield error(
            f"{path}.use_long_term_attention",
            "is false, and so is use_self_attention: nothing attends",
            "set one of them to true, or remove context_config",
        )
    elif config.self_attention_in_sequence and not config.use_long_term_attention:
        yield no_effect(f"{path}.self_attention_in_sequence", "use_long_term_attention is not set")
