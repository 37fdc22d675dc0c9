"""Differences of two configurations, field by field, and their effect on a training."""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import Message

from estimator_det.config.text import is_map, is_repeated
from estimator_det.files.text import shortened
from estimator_det.protos import pipeline_pb2

LONGEST_VALUE = 80
MOST_LINES = 20
_TRAINED = ("model", "train_config", "graph_rewriter")
# Fields that change no step of a resumed training.
_IDLE = {
    "train_config": (
        "batch_queue_capacity",
        "fine_tune_checkpoint",
        "fine_tune_checkpoint_type",
        "fine_tune_checkpoint_version",
        "from_detection_checkpoint",
        "keep_checkpoint_every_n_hours",
        "load_all_detection_checkpoint_vars",
        "min_restored_share",
        "num_batch_queue_threads",
        "num_steps",
        "prefetch_queue_capacity",
        "recompute",
        "retain_original_images",
        "run_fine_tune_checkpoint_dummy_computation",
        "startup_delay_steps",
        "summarize_gradients",
        "unpad_groundtruth_tensors",
    ),
    "model.center_net": ("post_processing",),
    "model.ssd": ("post_processing",),
    "model.faster_rcnn": ("second_stage_post_processing",),
}


class Difference(NamedTuple):
    """A field with its two values as text."""

    path: str
    before: str
    after: str


def differences(before: Message, after: Message, prefix: str = "") -> Iterator[Difference]:
    """Fields of two messages of one type that differ; another choice of a oneof counts once."""
    groups = set()
    for field in before.DESCRIPTOR.fields:
        first, second = (_value(message, field) for message in (before, after))
        if first == second:
            continue
        group = field.containing_oneof
        if group is not None and before.WhichOneof(group.name) != after.WhichOneof(group.name):
            if group.name not in groups:
                groups.add(group.name)
                names = (m.WhichOneof(group.name) or "not set" for m in (before, after))
                yield Difference(prefix.rstrip(".") or group.name, *names)
        elif isinstance(first, Message) and isinstance(second, Message):
            yield from differences(first, second, f"{prefix}{field.name}.")
        else:
            yield Difference(prefix + field.name, _text(first, field), _text(second, field))


def training_differences(
    before: pipeline_pb2.TrainEvalPipelineConfig, after: pipeline_pb2.TrainEvalPipelineConfig
) -> List[str]:
    """Lines about the differences of two configurations that change a training."""
    lines = [
        f"{path} is {new}; so far it was {old}"
        for name in _TRAINED
        for path, old, new in differences(getattr(before, name), getattr(after, name), f"{name}.")
        if not any(
            path.startswith(f"{parent}.{field}") for parent in _IDLE for field in _IDLE[parent]
        )
    ]
    rest = len(lines) - MOST_LINES
    if rest <= 0:
        return lines
    return [*lines[:MOST_LINES], f"{rest} more fields are not as so far"]


def _value(message: Message, field: Any) -> Any:
    """The value of a field; None if it is not set."""
    if is_map(field):
        return dict(getattr(message, field.name))
    if is_repeated(field):
        return list(getattr(message, field.name))
    return getattr(message, field.name) if message.HasField(field.name) else None


def _text(value: Any, field: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return shortened(f"[{', '.join(_text(each, field) for each in value)}]", LONGEST_VALUE)
    if isinstance(value, Message):
        text = text_format.MessageToString(value, as_one_line=True)
        return shortened(f"{{ {text} }}", LONGEST_VALUE)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(repr(value), LONGEST_VALUE)
