"""Bidirectional pyramid of feature maps, with a weight for each input of a node.

Tan et al., "EfficientDet: Scalable and Efficient Object Detection", 2020.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.hyperparams import open_activation
from estimator_det.nets.layers import conv2d, max_pool, separable_conv2d
from estimator_det.nets.necks.fpn import KERNEL, Maps, upsample_twofold
from estimator_det.nets.object_paths import Paths

FAST_ATTENTION, ATTENTION, SUM = COMBINE_METHODS = ("fast_attention", "attention", "sum")
"""Weights of inputs: positive ones over their sum, a softmax, or none."""

_EPSILON = 0.0001  # added to the sum of weights

_SCOPE = re.compile(
    r"bifpn/node_(?P<node>\d+)(/(input_(?P<input>\d+)|smoothing)(?P<norm>/BatchNorm)?)?"
)


class BifpnOptions(NamedTuple):
    """Settings of a `BidirectionalFeaturePyramidNetworks` message."""

    min_level: int  # finest level; level n is at stride 2^n
    max_level: int  # coarsest level
    num_iterations: int  # number of passes down and up
    depth: int  # channels of every map
    combine_method: str = FAST_ATTENTION  # one of `COMBINE_METHODS`

    @property
    def levels(self) -> Tuple[int, ...]:
        return tuple(range(self.min_level, self.max_level + 1))


class _Node(NamedTuple):
    level: int
    inputs: Tuple[int, ...]  # places in the list of maps: backbone maps, then earlier nodes


def _plan(options: BifpnOptions, num_inputs: int) -> Tuple[List[_Node], List[int]]:
    """Nodes in the order in which checkpoints count them, and the places of the last maps."""
    levels, nodes = options.levels, []

    def add(level: int, *inputs: int) -> int:
        nodes.append(_Node(level, inputs))
        return num_inputs + len(nodes) - 1

    places = dict(zip(levels, range(num_inputs)))
    for level in levels[num_inputs:]:
        places[level] = add(level, places[level - 1])
    for _ in range(options.num_iterations):
        down = {levels[-1]: places[levels[-1]]}
        for level in reversed(levels[:-1]):
            down[level] = add(level, places[level], down[level + 1])
        up = {levels[0]: down[levels[0]]}
        for level in levels[1:]:
            # At the coarsest level, the first two are the same.
            up[level] = add(level, *dict.fromkeys((places[level], down[level], up[level - 1])))
        places = up
    return nodes, [places[level] for level in levels]


def _resampled(features: tf.Tensor, rise: int, depth: int, scope: str) -> tf.Tensor:
    """An input of a node, with the node's channels, and with its size if it is `rise` coarser."""
    if features.shape[-1] != depth:
        features = conv2d(features, depth, 1, activation_fn=None, padding="SAME", scope=scope)
    if rise > 0:
        return max_pool(features, KERNEL, 2, "SAME")
    return upsample_twofold(features) if rise < 0 else features


def _combined(inputs: Sequence[tf.Tensor], method: str) -> tf.Tensor:
    """Weighted sum of the inputs of a node."""
    if method == SUM:
        return tf.add_n(inputs)
    weights = slim.model_variable(
        "bifpn_combine_weights",
        [len(inputs), 1],
        inputs[0].dtype,
        initializer=tf1.ones_initializer(),
    )
    if method == ATTENTION:
        weights = tf.nn.softmax(weights, axis=0)
    else:
        weights = tf.nn.relu(weights)
        weights /= tf.reduce_sum(weights) + _EPSILON
    return tf.add_n([weight * each for weight, each in zip(tf.unstack(weights), inputs)])


def bidirectional_maps(end_points: Sequence[tf.Tensor], options: BifpnOptions) -> Maps:
    """Passes activations of the finest levels down and up a pyramid, and returns all its levels.

    Coarser levels are pooled. A node adds its inputs, enlarged or pooled to its size; then come the
    activation, a separable convolution and its normalizer.
    """
    nodes, last = _plan(options, len(end_points))
    maps = [*end_points]
    levels = [*options.levels[: len(maps)], *(node.level for node in nodes)]
    activation = open_activation()
    with tf1.variable_scope("bifpn"):
        for number, node in enumerate(nodes):
            with tf1.variable_scope(f"node_{number}"):
                inputs = [
                    _resampled(
                        maps[place], node.level - levels[place], options.depth, f"input_{index}"
                    )
                    for index, place in enumerate(node.inputs)
                ]
                net = inputs[0]
                if len(inputs) > 1:
                    net = activation(_combined(inputs, options.combine_method))
                    net = separable_conv2d(
                        net,
                        options.depth,
                        KERNEL,
                        activation_fn=None,
                        padding="SAME",
                        scope="smoothing",
                    )
                maps.append(net)
    return tuple(maps[place] for place in last)


def object_paths(scopes: Sequence[str]) -> Paths:
    """Paths of the layers of a pyramid in the scope `bifpn`; see `nets.object_paths`."""
    paths: Dict[str, str] = {}
    for scope in scopes:
        match = _SCOPE.fullmatch(scope)
        if match is None:
            continue
        node, place = match["node"], int(match["norm"] is not None)
        if match["input"]:
            kind = f"node_input_blocks/{node}/{match['input']}/1/{place}"
        elif scope.endswith(f"node_{node}"):
            kind = f"node_combine_op/{node}"
        else:
            kind = f"node_post_combine_block/{node}/{place + 1}"
        paths[scope] = f"_bifpn_stage/{kind}"
    return paths
