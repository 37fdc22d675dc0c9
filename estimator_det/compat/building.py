"""Makes TensorFlow build graphs faster, with the same results."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import ops
from tensorflow.python.keras.utils import version_utils


def apply() -> None:
    """Replaces two functions, which take a fifth of the time to build a network."""
    _keep_bases_of_layers()
    _know_what_is_around_a_graph()


def _keep_bases_of_layers() -> None:
    """Sets the bases of a layer's class only if they change.

    For each layer that it makes, Keras chooses between its classes for graphs and for eager code
    again. Python then forgets what it knows of the class and of all that derive from it.
    """
    swap = version_utils.swap_class

    def swap_if_needed(cls: Any, v2_cls: Any, v1_cls: Any, use_v2: bool) -> Any:
        # The class for graphs derives from the class for eager code. Layers of slim derive from two
        # layers, and both must be right.
        wrong = v1_cls if use_v2 else v2_cls
        bases = [base for each in cls.__mro__ if each is not v1_cls for base in each.__bases__]
        is_right = wrong not in bases and cls not in (v1_cls, v2_cls)
        return cls if is_right else swap(cls, v2_cls, v1_cls, use_v2)

    version_utils.swap_class = swap_if_needed


def _know_what_is_around_a_graph() -> None:
    """Answers without a search if code around the open graph is eager.

    The open graph is the outermost context, unless it belongs to a function. TensorFlow asks some
    twenty times for each variable, and enters that context to find out.
    """
    search = ops.executing_eagerly_outside_functions

    def executing_eagerly_outside_functions() -> bool:
        is_plain_graph = (
            not ops.context.executing_eagerly() and not ops.get_default_graph().building_function
        )
        return False if is_plain_graph else search()

    ops.executing_eagerly_outside_functions = executing_eagerly_outside_functions
