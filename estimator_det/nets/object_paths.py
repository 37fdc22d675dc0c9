"""Paths of variables in object-based checkpoints of the TF2 line, from the order of layers.

A network of the TF2 line is a network of the TF1 line with other options, and its variables have
names of the same kind: `<scope of a layer>/weights`. Only the network's scope ends with `KERAS`, so
that a checkpoint of one line never fits a network of the other one, although shapes may agree.

An object-based checkpoint names a variable by the way from the model to it through Python objects,
such as `model/_feature_extractor/classification_backbone/layer_with_weights-3/gamma`. This path
follows from the place of the layer among the others:

* A backbone is a functional model of Keras, which counts its layers with weights from the inputs to
  the outputs (`functional`). Convolutions and batch norms count one by one, in the order in which
  they are built; layers of parallel branches count in turn, from their join backwards (`joined`).
* Necks, extra layers and towers are lists in which a convolution, its batch norm and its activation
  have one place each (`list_paths`).

So every component translates scopes of layers to paths, and `variable_paths` does the rest. A new
network needs the order of its layers only if it has branches.
"""

from __future__ import annotations

import itertools
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

KERAS = "_keras"
"""End of the types of the TF2 line, and of the scopes of their networks."""

BACKBONE_PATH = "classification_backbone"
"""Object of a feature extractor that is the backbone below its neck."""

FEATURES_PATH = "_efficientnet"
"""Object of a feature extractor that is the used part of a backbone with its classifier."""

PLACES = 3
"""Places of a layer in a list: convolution, batch norm and activation."""

_NORM = "/BatchNorm"
# Names of variables within a layer or batch norm here, and in Keras.
_LEAVES = {
    "weights": "kernel",
    "depthwise_weights": "depthwise_kernel",
    "pointwise_weights": "pointwise_kernel",
    "biases": "bias",
    **{name: name for name in ("beta", "gamma", "moving_mean", "moving_variance")},
    "bifpn_combine_weights": "bifpn_combine_weights",
}

Paths = Dict[str, str]  # paths of objects by the scope of a layer or of its batch norm
ObjectPaths = Callable[[Sequence[str]], Paths]  # scopes in the order of building -> paths


def layer_scopes(names: Iterable[str]) -> List[str]:
    """Scopes of layers and of batch norms, in the order of the variables' names."""
    parts = (name.rpartition("/") for name in names)
    return list(dict.fromkeys(scope for scope, _, leaf in parts if leaf in _LEAVES))


def variable_paths(names: Iterable[str], paths: Mapping[str, str]) -> Dict[str, str]:
    """Paths of the variables of the layers that have one, by name."""
    parts = ((name, *name.rpartition("/")[::2]) for name in names)
    return {
        name: f"{paths[scope]}/{_LEAVES[leaf]}"
        for name, scope, leaf in parts
        if leaf in _LEAVES and scope in paths
    }


def nested(prefix: str, paths: Mapping[str, str]) -> Paths:
    """The same paths, below a further object."""
    return {scope: f"{prefix}/{path}" for scope, path in paths.items()}


def classifier_paths(paths: Mapping[str, str], owner: str = "") -> Paths:
    """Paths in a checkpoint of a classifier, of the layers of the backbone below `owner`."""
    return {
        scope: f"feature_extractor/{path.removeprefix(prefix)}"
        for prefix in (f"{owner}{BACKBONE_PATH}/", f"{owner}{FEATURES_PATH}/")
        for scope, path in paths.items()
        if path.startswith(prefix)
    }


def functional(scopes: Sequence[str]) -> Paths:
    """Paths of the layers of a functional model, which are in its order."""
    return {scope: f"layer_with_weights-{number}" for number, scope in enumerate(scopes)}


def joined(*branches: Sequence[str]) -> List[str]:
    """Order of the layers of parallel branches: by their distance from the join, in turn."""
    backwards = itertools.zip_longest(*(reversed(branch) for branch in branches))
    return [scope for layers in reversed([*backwards]) for scope in layers if scope is not None]


def list_paths(scopes: Sequence[str], places: Mapping[str, Tuple[str, int]]) -> Paths:
    """Paths of the layers that have a place in a list; their batch norms have the next place."""
    paths: Paths = {}
    for scope in scopes:
        layer = scope.removesuffix(_NORM)
        if layer in places:
            name, place = places[layer]
            paths[scope] = f"{name}/{place + int(layer != scope)}"
    return paths


def layers_of(scopes: Iterable[str]) -> List[str]:
    """Scopes of layers, in their order; a batch norm counts as a part of its layer."""
    return list(dict.fromkeys(scope.removesuffix(_NORM) for scope in scopes))
