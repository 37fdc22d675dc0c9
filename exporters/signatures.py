"""Inputs of an exported detector, and further outputs.

Side inputs are those beside the images: context features, for models that attend to them. Their
flags have the form of the Object Detection API's: `1,2000,2057/1`, `float,int` and
`context_features,valid_context_size`.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.facts import context_shape
from estimator_det.config.text import nearest
from estimator_det.errors import UsageError
from estimator_det.protos import model_pb2
from exporters.loaded_model import BOXES, CLASSES, MASKS, NUM, SCORES
from inputs import schema
from inputs.serving import FILES, INPUT_TYPES

ALL_INPUT_TYPES = "all"
CLASS_NAMES = "detection_class_names"
# Outputs that describe detections themselves; others are raw predictions, or repeat them.
_COMPACT = (NUM, BOXES, SCORES, CLASSES, MASKS, "detection_keypoint")
_TYPES = {"float": tf.float32, "float32": tf.float32, "int": tf.int32, "int32": tf.int32}
_MEANING = {
    schema.CONTEXT_FEATURES: "the first number counts images and the second context features, and "
    "-1 means any size",
    schema.VALID_CONTEXT_SIZE: "the number counts images, and -1 means any size",
}


def resolve_input_types(names: Sequence[str], num_additional_channels: int) -> Tuple[str, ...]:
    """Expands "all" and checks names; the first one becomes `serving_default`.

    With additional channels, "all" leaves out the type that cannot have them.
    """
    chosen = tuple(names)
    if list(names) == [ALL_INPUT_TYPES]:
        left_out = FILES if num_additional_channels else ""
        chosen = tuple(name for name in INPUT_TYPES if name != left_out)
    for name in chosen:
        if name not in INPUT_TYPES:
            known = [*INPUT_TYPES, ALL_INPUT_TYPES]
            hint = nearest(name, known) or "."
            raise UsageError(f"input type {name!r} is not known{hint} Known: {known}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise UsageError(f"input types {list(names)}: give at least one, and each only once")
    return chosen


def parse_input_shape(text: str) -> Optional[List[Optional[int]]]:
    """`"1,300,300,3"` -> [1, 300, 300, 3]; -1 and None allow any size, "" gives None."""
    if not text.strip():
        return None
    sizes = parse_sizes(text, "input shape")
    if len(sizes) != 4:
        raise UsageError(
            f"input shape {text!r} has {len(sizes)} sizes; give four: batch,height,width,channels"
        )
    return sizes


def parse_sizes(text: str, name: str) -> List[Optional[int]]:
    """Sizes with commas between; the name begins the text of an error."""
    sizes: List[Optional[int]] = []
    for word in map(str.strip, text.split(",")):
        if word not in ("-1", "None") and not (word.isdigit() and int(word) > 0):
            raise UsageError(
                f"{name} {text!r}: {word!r} is not a size; give a number above 0, or -1 for any "
                "size"
            )
        sizes.append(int(word) if word.isdigit() else None)
    return sizes


def additional_outputs(names: Sequence[str]) -> Dict[str, tf.Tensor]:
    """Tensors of the current graph by name; `":0"` may be left out, and is not part of the key.

    Call it while the graph has the first input type only: a tensor that depends on the placeholder
    of another type has no value in this signature.
    """
    graph, tensors = tf1.get_default_graph(), {}
    for name in names:
        operation = name[:-2] if name.endswith(":0") else name
        try:
            tensor = graph.get_tensor_by_name(operation if ":" in operation else f"{operation}:0")
        except (KeyError, ValueError) as error:
            hint = nearest(operation, [each.name for each in graph.get_operations()])
            raise UsageError(
                f"additional output tensor {name!r} is not in the graph of the first input "
                f"type{hint or '.'} The file of --write_inference_graph lists the names"
            ) from error
        if tensor.dtype in (tf.resource, tf.variant):
            raise UsageError(
                f"additional output tensor {name!r} is a {tensor.dtype.name}, which has no value; "
                "name the tensor that is read from it"
            )
        tensors[operation] = tensor
    return tensors


def compact_outputs(
    outputs: Mapping[str, tf.Tensor], names: Mapping[int, str], num_classes: int, scope: str = ""
) -> Dict[str, tf.Tensor]:
    """The detections among named outputs, and their class names, string [B, N].

    Rows past `num_detections` have the name "". A class without a name has its id.

    Args:
        names: Id -> name of the label map.
        scope: Prefix of the tensors of another signature than the first.
    """
    kept = {key: tensor for key, tensor in outputs.items() if key.startswith(_COMPACT)}
    table = tf.constant([names.get(i, str(i)) for i in range(num_classes + 1)])
    with tf1.name_scope(None):
        texts = tf.gather(table, tf.cast(outputs[CLASSES], tf.int32))
        is_filled = tf.sequence_mask(tf.cast(outputs[NUM], tf.int32), tf.shape(texts)[1])
        name = f"{scope}/{CLASS_NAMES}" if scope else CLASS_NAMES
        kept[CLASS_NAMES] = tf.where(is_filled, texts, "", name=name)
    return kept


class SideInput(NamedTuple):
    """A placeholder."""

    name: str  # also the key in the signature
    dtype: tf.DType
    shape: Tuple[Optional[int], ...]  # None for any length


def model_side_inputs(model: model_pb2.DetectionModel) -> Dict[str, SideInput]:
    """The side inputs that a `DetectionModel` message needs by name, for any number of images."""
    shape = context_shape(model)
    if shape is None:
        return {}
    features = SideInput(schema.CONTEXT_FEATURES, tf.float32, (None, *shape))
    size = SideInput(schema.VALID_CONTEXT_SIZE, tf.int32, (None,))
    return {features.name: features, size.name: size}


def parse_side_inputs(
    shapes: str, types: str, names: str, model: model_pb2.DetectionModel
) -> Tuple[SideInput, ...]:
    """Side inputs of the flags; an empty text gives what the model needs.

    Args:
        shapes: Shapes with slashes between, sizes with commas between, -1 for any size.
        names: With commas between; they give the order of the other two.
    """
    needed = model_side_inputs(model)
    chosen = _words(names) or list(needed)
    side_inputs = [needed.get(name, SideInput(name, tf.float32, ())) for name in chosen]
    parts = shapes.split("/") if shapes else []
    for field, values in (
        ("dtype", [_type(word) for word in _words(types)]),
        ("shape", [tuple(parse_sizes(part, "--side_input_shapes:")) for part in parts]),
    ):
        if values and len(values) != len(chosen):
            flag = "--side_input_types" if field == "dtype" else "--side_input_shapes"
            raise UsageError(
                f"{flag}: has {len(values)} entries for the side inputs {chosen}; give one for each"
            )
        for position, value in enumerate(values):
            side_inputs[position] = side_inputs[position]._replace(**{field: value})
    return tuple(side_inputs)


def check_side_inputs(
    model: model_pb2.DetectionModel, side_inputs: Optional[Sequence[SideInput]]
) -> Tuple[SideInput, ...]:
    """The side inputs of an export, none where None is given."""
    needed = model_side_inputs(model)
    if side_inputs is None and needed:
        raise UsageError(
            f"the model needs the side inputs {list(needed)}, because it attends to context "
            "features; add --use_side_inputs"
        )
    if side_inputs is not None and not needed:
        raise UsageError(
            "--use_side_inputs: the model takes no side inputs, because it has no context_config "
            "with use_long_term_attention; leave it out"
        )
    chosen = tuple(side_inputs or ())
    if sorted(side.name for side in chosen) != sorted(needed):
        raise UsageError(
            f"--side_input_names: are {[side.name for side in chosen]}; the model takes "
            f"{list(needed)}, each once"
        )
    for side in chosen:
        wanted = needed[side.name]
        if side.dtype != wanted.dtype:
            raise UsageError(
                f"--side_input_types: {side.name} is {side.dtype.name}; it must be "
                f"{wanted.dtype.name}"
            )
        # The number of context features may differ from training, which pads to its own number.
        if len(side.shape) != len(wanted.shape) or side.shape[2:] != wanted.shape[2:]:
            raise UsageError(
                f"--side_input_shapes: {side.name} is {_text(side.shape)}; it must be "
                f"{_text(wanted.shape)}, where {_MEANING[side.name]}"
            )
    return chosen


def _words(text: str) -> List[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _type(word: str) -> tf.DType:
    known = _TYPES.get(word.removeprefix("tf."))
    if known is None:
        raise UsageError(f"--side_input_types: {word!r} is not known; allowed: {sorted(_TYPES)}")
    return known


def _text(shape: Sequence[Optional[int]]) -> str:
    return ",".join("-1" if size is None else str(size) for size in shape)
