"""SpaghettiNets for the Edge TPU: backbone and feature maps searched together, as tables of nodes.

A node sums maps of other nodes, resampled to its level, and applies layers to the sum. The networks
and the names of their variables are those published for SSD on the Pixel 6. Grouped convolutions
are made for quantization: their parts share one range, learned in training.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.images.resize import height_and_width
from estimator_det.nets.hyperparams import truncated_normal
from estimator_det.nets.layers import choose_padding, conv2d, max_pool, separable_conv2d
from estimator_det.nets.necks.fpn import upsample_twofold
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.quantization import range_variable, update_average

WEIGHT_DECAY = 0.00001
WEIGHT_STDDEV = 0.03
BATCH_NORM_DECAY = 0.97
BATCH_NORM_EPSILON = 0.001

STEM = "s0"
STEM_DEPTH = 24
STEM_KERNEL = 5
SCOPE = "spaghetti_net"


class NodeLayer(NamedTuple):
    """One layer of a node."""

    # `ibn` (inverted bottleneck), `fused` (grouped whole convolutions, then a projection) or
    # `separable`.
    kind: str
    kernel: int  # height and width of the spatial kernel
    expansion: int = 1  # channels inside, per output (`ibn`) or input (`fused`) channel
    groups: int = 1  # number of groups of a `fused` layer


class SpaghettiNode(NamedTuple):
    """One row of a network."""

    name: str  # short name, part of variable scopes
    depth: int  # output channels
    # Resolution, 1/2^n of the image's, to which maps are resampled; the map of a single input is
    # not resampled.
    level: int
    inputs: Tuple[str, ...]  # names of nodes above this row
    # The first may change the number of channels; the others add their input.
    layers: Tuple[NodeLayer, ...]
    stride: int = 1  # stride of the first layer


def _ibn(expansion: int, kernel: int = 3) -> NodeLayer:
    return NodeLayer("ibn", kernel, expansion)


def _fused(expansion: int, groups: int) -> NodeLayer:
    return NodeLayer("fused", 3, expansion, groups)


def _separable(kernel: int) -> NodeLayer:
    return NodeLayer("separable", kernel)


def _trunk(*nodes: Tuple[int, Tuple[NodeLayer, ...]]) -> Tuple[SpaghettiNode, ...]:
    """Nodes n0 (level 2), n1 and so on, each at half the resolution of the one before it."""
    names = [STEM, *(f"n{number}" for number in range(len(nodes)))]
    return tuple(
        SpaghettiNode(names[number + 1], depth, number + 2, (names[number],), layers, stride=2)
        for number, (depth, layers) in enumerate(nodes)
    )


def _head(*nodes: Tuple[int, Tuple[NodeLayer, ...]]) -> Tuple[SpaghettiNode, ...]:
    """Nodes c0n0 to c0n5, connected in the same way in all networks."""
    connections = (
        (5, ("n3", "n4")),
        (4, ("n2", "c0n0")),
        (5, ("c0n1", "c0n0")),
        (6, ("n5", "c0n0")),
        (7, ("n5", "c0n0")),
        (8, ("c0n4",)),
    )
    return tuple(
        SpaghettiNode(f"c0n{number}", depth, level, inputs, layers)
        for number, ((depth, layers), (level, inputs)) in enumerate(zip(nodes, connections))
    )


OUTPUTS = ("c0n1", "c0n2", "c0n3", "c0n4", "c0n5")

NETWORKS: Dict[str, Tuple[SpaghettiNode, ...]] = {
    "spaghettinet_edgetpu_s": (
        *_trunk(
            (48, (_fused(8, 3),)),
            (64, (_fused(4, 4), _fused(4, 4), _fused(4, 4))),
            (72, (_ibn(8), _fused(8, 4), _ibn(8), _ibn(4))),
            (88, (_ibn(8), _ibn(8), _ibn(4), _ibn(4))),
            (88, (_ibn(8), _separable(5), _separable(5), _separable(5))),
            (88, (_separable(5), _separable(3))),
        ),
        *_head(
            (144, (_ibn(4), _ibn(4), _ibn(4), _ibn(4))),
            (120, (_ibn(8), _ibn(4), _ibn(4), _ibn(4))),
            (168, (_ibn(4),)),
            (136, (_ibn(4), _separable(3))),
            (136, (_ibn(4),)),
            (64, (_separable(3), _separable(3))),
        ),
    ),
    "spaghettinet_edgetpu_m": (
        *_trunk(
            (48, (_fused(8, 3),)),
            (64, (_fused(8, 4), _fused(4, 4), _fused(4, 4), _fused(4, 4))),
            (72, (_ibn(8), _fused(8, 4), _ibn(8), _ibn(8))),
            (96, (_ibn(8), _ibn(8), _ibn(8), _ibn(4))),
            (104, (_ibn(8), _ibn(4), _separable(5), _ibn(4))),
            (56, (_separable(5), _separable(3))),
        ),
        *_head(
            (152, (_ibn(8), _ibn(4), _ibn(4), _ibn(4))),
            (120, (_ibn(8), _ibn(4), _ibn(4), _ibn(4))),
            (168, (_ibn(4), _separable(3))),
            (136, (_separable(3), _separable(3), _separable(3))),
            (136, (_ibn(4), _separable(5))),
            (64, (_separable(3), _separable(3))),
        ),
    ),
    "spaghettinet_edgetpu_l": (
        *_trunk(
            (48, (_fused(8, 3),)),
            (64, (_fused(8, 4), _fused(8, 4), _fused(8, 4), _fused(4, 4))),
            (80, (_ibn(8), _ibn(8), _ibn(8), _ibn(4))),
            (104, (_ibn(8), _ibn(8), _ibn(8), _ibn(8))),
            (88, (_ibn(8), _ibn(4, kernel=5), _ibn(4), _ibn(8))),
            (56, (_ibn(4, kernel=5), _separable(5))),
        ),
        *_head(
            (160, (_ibn(8), _ibn(4), _ibn(4), _ibn(4))),
            (120, (_ibn(8), _ibn(4), _ibn(4), _ibn(8))),
            (168, (_ibn(4), _ibn(4), _ibn(4), _ibn(4))),
            (112, (_ibn(8), _ibn(4), _separable(3))),
            (128, (_ibn(4), _ibn(4))),
            (64, (_separable(5), _separable(5))),
        ),
    ),
}
DEFAULT_NETWORK = "spaghettinet_edgetpu_m"


def _range_end(name: str, start: float) -> tf.Variable:
    collections = [tf1.GraphKeys.MODEL_VARIABLES, tf1.GraphKeys.MOVING_AVERAGE_VARIABLES]
    return range_variable(tf1.get_variable_scope(), name, start, collections=collections)


def _update_average(average: tf.Variable, observed: tf.Tensor) -> tf.Tensor:
    """Updates a moving average by one step, and returns its value after that."""
    # Names of TensorFlow's moving averages repeat the full name inside the scope.
    value, updates = update_average(tf1.get_variable_scope(), average.op.name, average, observed)
    with tf1.control_dependencies(updates):
        return tf.identity(value)


def _concat_in_one_range(parts: Sequence[tf.Tensor], is_training: bool) -> tf.Tensor:
    """Concatenates channels, rounded like eight-bit integers of one learned range."""
    with tf1.variable_scope("concat"):
        least, most = _range_end("min", 0.0), _range_end("max", 6.0)  # the range of relu6
        if is_training:
            values = tf.stop_gradient(tf.concat(parts, axis=-1))
            # Zero must be within the range, because it must stay zero when quantized.
            least = _update_average(least, tf.minimum(tf.reduce_min(values), 0.0))
            most = _update_average(most, tf.maximum(tf.reduce_max(values), 0.0))
        rounded = [
            tf.quantization.fake_quant_with_min_max_vars(part, least, most) for part in parts
        ]
        return tf.concat(rounded, axis=-1)


def _layer(
    inputs: tf.Tensor, layer: NodeLayer, depth: int, *, stride: int, padding: str, is_training: bool
) -> tf.Tensor:
    """Builds a layer: [B, h, w, c] -> [B, ceil(h / stride), ceil(w / stride), depth]."""
    net = inputs
    if layer.kind == "ibn":
        net = conv2d(net, depth * layer.expansion, 1, scope="expansion")
    padding = padding if stride > 1 else "SAME"
    spatial: Dict[str, Any] = {"kernel_size": layer.kernel, "stride": stride, "padding": padding}
    if layer.kind == "fused":
        width = inputs.shape[-1] // layer.groups * layer.expansion
        parts = [
            conv2d(part, width, scope=f"slice_{number}", **spatial)
            for number, part in enumerate(tf.split(net, layer.groups, axis=-1))
        ]
        net = _concat_in_one_range(parts, is_training)
    else:
        if layer.kind == "separable":  # the depthwise half is linear, with a bias
            spatial.update(activation_fn=None, normalizer_fn=None)
        net = separable_conv2d(net, None, scope="depthwise", **spatial)
    if layer.kind == "separable":
        return conv2d(net, depth, 1, scope="pointwise")
    return conv2d(net, depth, 1, activation_fn=None, scope="projection")


def _edge(net: tf.Tensor, from_level: int, level: int, depth: int, padding: str) -> Any:
    """Resamples a map to another level and depth."""
    # The 1x1 convolution runs at the lower resolution, which is cheaper.
    name = "1x1_no_resampling"
    if from_level < level:
        name = "1x1_after_downsampling"
        stride = 2 ** (level - from_level)
        net = max_pool(net, stride + 1, stride, padding)
    elif from_level > level:
        name = "1x1_before_upsample"
    net = conv2d(net, depth, 1, activation_fn=None, scope=name)
    for _ in range(from_level - level):
        net = upsample_twofold(net)
    return net


def _sum_of_edges(
    node: SpaghettiNode, maps: Dict[str, tf.Tensor], levels: Dict[str, int], padding: str
) -> tf.Tensor:
    """Adds the inputs of a node at its level, cut to the size of the finest one."""
    edges = []
    for source in node.inputs:
        with tf1.variable_scope(f"edge_{source}_{node.name}"):
            edges.append(_edge(maps[source], levels[source], node.level, node.depth, padding))
    finest = edges[min(range(len(edges)), key=lambda number: levels[node.inputs[number]])]
    height, width = height_and_width(finest)
    total = None
    for edge in edges:
        if edge.shape[1:3].as_list() != [height, width]:
            edge = edge[:, :height, :width, :]
        total = edge if total is None else total + edge
    return tf.nn.relu6(total)


def spaghettinet(
    inputs: tf.Tensor, name: str, *, is_training: bool, explicit_padding: bool = False
) -> Dict[str, tf.Tensor]:
    """Builds one of `NETWORKS` in the open variable scope; returns the map of every node by name.

    Maps of `OUTPUTS` have 1/16, 1/32, 1/64, 1/128 and again 1/128 of the resolution, rounded up.
    Explicit padding is by kernel size instead of "SAME", at strides above 1.
    """
    padding = choose_padding(explicit_padding)
    levels = {node.name: node.level for node in NETWORKS[name]}
    maps: Dict[str, tf.Tensor] = {}
    with published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=truncated_normal(WEIGHT_STDDEV),
        weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY),
        activation_fn=tf.nn.relu6,
        normalizer_fn=batch_norm,
        padding="SAME",
    ):
        maps[STEM] = conv2d(
            inputs,
            STEM_DEPTH,
            STEM_KERNEL,
            stride=2,
            padding=padding,
            scope=f"{SCOPE}/stem_node/stem",
        )
        for node in NETWORKS[name]:
            if len(node.inputs) == 1:
                net = maps[node.inputs[0]]
            else:
                net = _sum_of_edges(node, maps, levels, padding)
            for number, layer in enumerate(node.layers):
                with tf1.variable_scope(f"{SCOPE}/{node.name}_{number}"):
                    output = _layer(
                        net,
                        layer,
                        node.depth,
                        stride=1 if number else node.stride,
                        padding=padding,
                        is_training=is_training,
                    )
                    net = output + net if number else output
            maps[node.name] = net
    return maps
