"""Inputs of an exported model beside its images: context features, for models that attend to them.

The flags have the form of the reference's: `1,2000,2057/1`, `float,int` and
`context_features,valid_context_size`.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.check_model import context_shape
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Context
from exporters.signatures import parse_sizes
from inputs import schema

_TYPES = {"float": tf.float32, "float32": tf.float32, "int": tf.int32, "int32": tf.int32}


class SideInput(NamedTuple):
    """A placeholder."""

    name: str  # also the key in the signature
    dtype: tf.DType
    shape: Tuple[Optional[int], ...]  # None for any length


def model_side_inputs(model: Any) -> Tuple[SideInput, ...]:
    """The side inputs that a `DetectionModel` message needs, for any number of images."""
    shape = context_shape(model)
    if shape is None:
        return ()
    return (
        SideInput(schema.CONTEXT_FEATURES, tf.float32, (None, *shape)),
        SideInput(schema.VALID_CONTEXT_SIZE, tf.int32, (None,)),
    )


def parse_side_inputs(shapes: str, types: str, names: str, model: Any) -> Tuple[SideInput, ...]:
    """Side inputs of the flags; an empty text gives what the model needs.

    Args:
        shapes: Shapes with slashes between, sizes with commas between, -1 for any size.
        names: With commas between; they give the order of the other two.
    """
    needed = {side.name: side for side in model_side_inputs(model)}
    chosen = _words(names) or list(needed)
    side_inputs = [needed.get(name, SideInput(name, tf.float32, ())) for name in chosen]
    parts = shapes.split("/") if shapes else []
    for field, values in (
        ("dtype", [_type(word) for word in _words(types)]),
        ("shape", [tuple(parse_sizes(part, "--side_input_shapes:")) for part in parts]),
    ):
        if values and len(values) != len(chosen):
            flag = "--side_input_types" if field == "dtype" else "--side_input_shapes"
            raise ConfigError(
                None,
                f"{flag}: has {len(values)} entries for the side inputs {chosen}",
                "give one for each",
            )
        for position, value in enumerate(values):
            side_inputs[position] = side_inputs[position]._replace(**{field: value})
    return tuple(side_inputs)


def check_side_inputs(
    model: Any, side_inputs: Optional[Sequence[SideInput]]
) -> Tuple[SideInput, ...]:
    """The side inputs of an export, none where None is given."""
    needed = {side.name: side for side in model_side_inputs(model)}
    if side_inputs is None and needed:
        raise ConfigError(
            None,
            f"the model needs the side inputs {list(needed)}, because it attends to "
            "context features",
            "add --use_side_inputs",
        )
    if side_inputs is not None and not needed:
        raise ConfigError(
            None,
            "--use_side_inputs: the model takes no side inputs, because it has no "
            "context_config with use_long_term_attention",
            "leave it out",
        )
    chosen = tuple(side_inputs or ())
    if sorted(side.name for side in chosen) != sorted(needed):
        raise ConfigError(
            None,
            f"--side_input_names: are {[side.name for side in chosen]}; the model "
            f"takes {list(needed)}, each once",
        )
    for side in chosen:
        wanted = needed[side.name]
        if side.dtype != wanted.dtype:
            raise ConfigError(
                None,
                f"--side_input_types: {side.name} is {side.dtype.name}; it must be "
                f"{wanted.dtype.name}",
            )
        # The number of context features may differ from the one that training pads to.
        if len(side.shape) != len(wanted.shape) or side.shape[2:] != wanted.shape[2:]:
            raise ConfigError(
                None,
                f"--side_input_shapes: {side.name} is {_text(side.shape)}; it must be "
                f"{_text(wanted.shape)}, where {_MEANING[side.name]}",
            )
    return chosen


_MEANING = {
    schema.CONTEXT_FEATURES: "the first number counts images and the second context features, and "
    "-1 means any size",
    schema.VALID_CONTEXT_SIZE: "the number counts images, and -1 means any size",
}


def make_placeholders(
    chosen: Sequence[SideInput],
) -> Tuple[Dict[str, tf.Tensor], Optional[Context]]:
    """Placeholders by name in the current graph, and the context that they are; None of none."""
    placeholders = {
        side.name: tf1.placeholder(side.dtype, side.shape, name=side.name) for side in chosen
    }
    if not placeholders:
        return {}, None
    return placeholders, Context(
        placeholders[schema.CONTEXT_FEATURES], placeholders[schema.VALID_CONTEXT_SIZE]
    )


def _words(text: str) -> List[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _type(word: str) -> tf.DType:
    known = _TYPES.get(word.removeprefix("tf."))
    if known is None:
        raise ConfigError(
            None, f"--side_input_types: {word!r} is not known; allowed: {sorted(_TYPES)}"
        )
    return known


def _text(shape: Sequence[Optional[int]]) -> str:
    return ",".join("-1" if size is None else str(size) for size in shape)
