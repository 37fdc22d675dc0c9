"""Text of a configuration that explains itself, with a comment above each part."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Sequence

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from estimator_det.config.text import is_map, is_repeated

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

WIDTH = 110

# By the name of a field, where no choice explains it.
NOTES = {
    "feature_extractor": "The network that turns an image into feature maps.",
    "conv_hyperparams": "Regularizer, first values and batch norm of the convolutions.",
    "override_base_feature_extractor_hyperparams": "The backbone has them, too.",
    "anchor_generator": "Boxes of several sizes and shapes around each cell of the feature maps.",
    "first_stage_anchor_generator": "Boxes of several sizes around each cell of the feature map.",
    "box_coder": "A box is learned as its offset from an anchor, in these units.",
    "matcher": "An anchor learns a box that it overlaps enough; each box gets its best anchor.",
    "similarity_calculator": "Overlap is intersection over union.",
    "box_predictor": "Heads: a score for each class and an offset for each anchor.",
    "loss": "Losses of scores and of offsets.",
    "normalize_loss_by_num_matches": "Losses are divided by the number of matched anchors.",
    "post_processing": "Detections that overlap a better one of their class are dropped.",
    "encode_background_as_zeros": "Background has no class of its own.",
    "first_stage_nms_iou_threshold": "Proposals that overlap a better one are dropped.",
    "initial_crop_size": "Each proposal becomes a crop of the feature map.",
    "second_stage_box_predictor": "Heads of the second stage: classes, boxes and masks of crops.",
    "second_stage_post_processing": "Detections that overlap a better one are dropped.",
    "first_stage_box_predictor_conv_hyperparams": "The head that finds proposals.",
    "train_input_reader": "Records to train on.",
    "eval_config": "Metrics of the held-out part. Evaluations write the best threshold of each "
    "class to eval_0/thresholds-STEP.json in the folder of the run.",
    "eval_input_reader": "Records to evaluate on, which training never sees.",
    "fine_tune_checkpoint_type": "Which variables are restored: all of the detector.",
    "gradient_clipping_by_norm": "A single bad batch cannot destroy the weights.",
    "metrics_set": "COCO's average precision.",
}


def commented(
    config: pipeline_pb2.TrainEvalPipelineConfig, reasons: Mapping[str, str], header: Sequence[str]
) -> str:
    """Text form of a message, with comments.

    Args:
        reasons: Comments by path, such as `train_config.batch_size`.
        header: Lines of a comment at the beginning.
    """
    lines = [part for line in header for part in comment(line) or ["#"]]
    # Each note and reason is used up by its field.
    lines += _fields(config, "", {**NOTES, **reasons}, 0)
    return "\n".join(lines) + "\n"


def comment(text: str, indent: int = 0) -> List[str]:
    """Lines of a comment."""
    prefix = " " * indent + "# "
    return textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def _fields(message: Message, path: str, texts: Dict[str, str], indent: int) -> Iterator[str]:
    row = ""  # numbers and words without a comment, which share a line
    for field, value in message.ListFields():
        place = path + field.name
        note = texts.pop(place, "") or texts.pop(field.name, "")
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        text = "" if is_message else _text(message, field)
        # A comment belongs to the field after it, so that field begins a line.
        if row and (note or is_message or len(row) + len(text) >= WIDTH):
            yield row
            row = ""
        comments = comment(note, indent)
        if is_map(field):
            yield from [*comments, *(" " * indent + entry for entry in _entries(message, field))]
            continue
        if not is_message:
            yield from comments
            row = f"{row} {text}" if row else " " * indent + text
            continue
        for number, part in enumerate(value if is_repeated(field) else [value]):
            below = f"{place}[{number}]" if is_repeated(field) else place
            lines = list(_message(part, field.name, below, texts, indent))
            # Parts of the configuration stand apart.
            yield from [""] if len(lines) > 1 and not indent else []
            yield from [*comments, *lines]
            comments = []
    if row:
        yield row


def _message(
    message: Message, name: str, path: str, texts: Dict[str, str], indent: int
) -> Iterator[str]:
    """A message on one line if it fits, and nothing below it has a reason."""
    has_reason = any(key.startswith(path + ".") for key in texts)
    text = _on_one_line(message)
    line = " " * indent + (f"{name} {{ {text} }}" if text else f"{name} {{ }}")
    if len(line) <= WIDTH and not has_reason:
        yield line
        return
    # A message that only contains another one begins and ends on its lines.
    opening, closing = f"{name} {{", "}"
    while True:
        fields = message.ListFields()
        (field, value) = fields[0]
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE and not is_repeated(field)
        if len(fields) > 1 or not is_message or f"{path}.{field.name}" in texts:
            break
        message, path = value, f"{path}.{field.name}"
        opening, closing = f"{opening} {field.name} {{", closing + " }"
    yield " " * indent + opening
    yield from _fields(message, f"{path}.", texts, indent + 2)
    yield " " * indent + closing


def _entries(message: Message, field: FieldDescriptor) -> Iterator[str]:
    """The entries of a map, each on one line."""
    for key, value in sorted(getattr(message, field.name).items()):
        single = type(message)()
        getattr(single, field.name)[key] = value
        yield _on_one_line(single)


def _text(message: Message, field: FieldDescriptor) -> str:
    single = type(message)()
    FieldMask(paths=[field.name]).MergeMessage(message, single)
    return _on_one_line(single)


def _on_one_line(message: Message) -> str:
    return text_format.MessageToString(
        message, as_one_line=True, use_short_repeated_primitives=True
    ).strip()
