"""Inputs of an exported model beside its images: context features, for models that attend to them.

The flags have the form of the reference's: `1,2000,2057/1`, `float,int` and
`context_features,valid_context_size`.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.context import context_shape
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Context
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
    needed = {one.name: one for one in model_side_inputs(model)}
    chosen = _words(names) if names else list(needed)
    given_types = [_type(word) for word in _words(types)]
    given_shapes = [_shape(part) for part in shapes.split("/")] if shapes else []
    for flag, found in (("side_input_types", given_types), ("side_input_shapes", given_shapes)):
        if found and len(found) != len(chosen):
            raise ConfigError(
                f"--{flag}: has {len(found)} entries for the side inputs {chosen}; give one for "
                "each"
            )
    made = []
    for position, name in enumerate(chosen):
        known = needed.get(name, SideInput(name, tf.float32, ()))
        dtype = given_types[position] if given_types else known.dtype
        shape = given_shapes[position] if given_shapes else known.shape
        made.append(SideInput(name, dtype, shape))
    return tuple(made)


def check_side_inputs(model: Any, given: Optional[Sequence[SideInput]]) -> Tuple[SideInput, ...]:
    """The side inputs of an export, none where None is given."""
    needed = {one.name: one for one in model_side_inputs(model)}
    if given is None and needed:
        raise ConfigError(
            f"the model needs the side inputs {list(needed)}, because it attends to context "
            "features; add --use_side_inputs"
        )
    if given is not None and not needed:
        raise ConfigError(
            "--use_side_inputs: the model takes no side inputs, because it has no context_config "
            "with use_long_term_attention; leave it out"
        )
    chosen = tuple(given or ())
    if sorted(one.name for one in chosen) != sorted(needed):
        raise ConfigError(
            f"--side_input_names: are {[one.name for one in chosen]}; the model takes "
            f"{list(needed)}, each once"
        )
    for one in chosen:
        wanted = needed[one.name]
        if one.dtype != wanted.dtype:
            raise ConfigError(
                f"--side_input_types: {one.name} is {one.dtype.name}; it must be "
                f"{wanted.dtype.name}"
            )
        # The number of context features may differ from the one that training pads to.
        if len(one.shape) != len(wanted.shape) or one.shape[2:] != wanted.shape[2:]:
            raise ConfigError(
                f"--side_input_shapes: {one.name} is {_text(one.shape)}; it must be "
                f"{_text(wanted.shape)}, where {_MEANING[one.name]}"
            )
    return chosen


_MEANING = {
    schema.CONTEXT_FEATURES: "the first number counts images and the second context features, and "
    "-1 stands for any size",
    schema.VALID_CONTEXT_SIZE: "the number counts images, and -1 stands for any size",
}


def make_placeholders(
    chosen: Sequence[SideInput],
) -> Tuple[Dict[str, tf.Tensor], Optional[Context]]:
    """Placeholders by name in the current graph, and the context that they are; None of none."""
    made = {one.name: tf1.placeholder(one.dtype, one.shape, name=one.name) for one in chosen}
    if not made:
        return {}, None
    return made, Context(made[schema.CONTEXT_FEATURES], made[schema.VALID_CONTEXT_SIZE])


def _words(text: str) -> List[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _type(word: str) -> tf.DType:
    known = _TYPES.get(word.removeprefix("tf."))
    if known is None:
        raise ConfigError(f"--side_input_types: {word!r} is not known; allowed: {sorted(_TYPES)}")
    return known


def _shape(text: str) -> Tuple[Optional[int], ...]:
    sizes: List[Optional[int]] = []
    for word in _words(text):
        if word == "-1":
            sizes.append(None)
        elif word.isdigit() and int(word) > 0:
            sizes.append(int(word))
        else:
            raise ConfigError(
                f"--side_input_shapes: {word!r} in {text!r} is not a size; give a number above 0, "
                "or -1 for any size"
            )
    return tuple(sizes)


def _text(shape: Sequence[Optional[int]]) -> str:
    return ",".join("-1" if size is None else str(size) for size in shape)
