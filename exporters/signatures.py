"""Input types of an exported detector, and its signatures."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError, nearest

INPUT_TYPES = (
    "image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
    "float_image_tensor",
)
COLOR_INPUT_TYPE = "encoded_image_string_tensor"  # has no channels beyond RGB
STRING_INPUT_TYPES = ("encoded_image_string_tensor", "tf_example")
ALL_INPUT_TYPES = "all"


def resolve_input_types(names: Sequence[str], num_additional_channels: int = 0) -> Tuple[str, ...]:
    """Expands "all" and checks names; the first one becomes `serving_default`.

    With additional channels, "all" leaves out the type that cannot have them.
    """
    chosen = tuple(names)
    if list(names) == [ALL_INPUT_TYPES]:
        left_out = COLOR_INPUT_TYPE if num_additional_channels else ""
        chosen = tuple(name for name in INPUT_TYPES if name != left_out)
    for name in chosen:
        if name not in INPUT_TYPES:
            known = [*INPUT_TYPES, ALL_INPUT_TYPES]
            hint = nearest(name, known) or "."
            raise ConfigError(None, f"input type {name!r} is not known{hint} Known: {known}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(None, f"input types {list(names)}: give at least one, and each only once")
    return chosen


def parse_input_shape(text: str) -> Optional[List[Optional[int]]]:
    """`"1,300,300,3"` -> [1, 300, 300, 3]; -1 and None allow any size, "" gives None."""
    if not text.strip():
        return None
    sizes = parse_sizes(text, "input shape")
    if len(sizes) != 4:
        raise ConfigError(
            None,
            f"input shape {text!r} has {len(sizes)} sizes",
            "give four: batch,height,width,channels",
        )
    return sizes


def parse_sizes(text: str, name: str) -> List[Optional[int]]:
    """Sizes with commas between; the name begins the text of an error."""
    sizes: List[Optional[int]] = []
    for word in map(str.strip, text.split(",")):
        if word not in ("-1", "None") and not (word.isdigit() and int(word) > 0):
            raise ConfigError(
                None,
                f"{name} {text!r}: {word!r} is not a size",
                "give a number above 0, or -1 for any size",
            )
        sizes.append(int(word) if word.isdigit() else None)
    return sizes


def additional_outputs(names: Sequence[str]) -> Dict[str, tf.Tensor]:
    """Tensors of the current graph by name; `":0"` may be left out, and is not part of the key.

    The graph is that of the first input type alone: what depends on the placeholder of another one
    has no value in its signature.
    """
    graph, tensors = tf1.get_default_graph(), {}
    for name in names:
        operation = name[:-2] if name.endswith(":0") else name
        try:
            tensor = graph.get_tensor_by_name(operation if ":" in operation else f"{operation}:0")
        except (KeyError, ValueError) as error:
            hint = nearest(operation, [each.name for each in graph.get_operations()])
            raise ConfigError(
                None,
                f"additional output tensor {name!r} is not in the graph of the first "
                f"input type{hint or '.'} The file of --write_inference_graph lists the "
                "names",
            ) from error
        if tensor.dtype in (tf.resource, tf.variant):
            raise ConfigError(
                None,
                f"additional output tensor {name!r} is a {tensor.dtype.name}, which has no value",
                "name the tensor that is read from it",
            )
        tensors[operation] = tensor
    return tensors
