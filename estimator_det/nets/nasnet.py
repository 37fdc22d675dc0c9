"""Networks of searched cells: PNASNet-5.

Liu et al., "Progressive Neural Architecture Search", 2018, in the layout of Zoph et al., "Learning
Transferable Architectures for Scalable Image Recognition", 2018. A cell is data: five pairs of
operations on earlier states. Variable names, and so checkpoints, are those of the published
classifiers.
"""

from __future__ import annotations

from typing import ContextManager, Dict, NamedTuple, Optional, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import batch_norm, published_scope

# What the published large networks were trained with.
WEIGHT_DECAY = 0.00004
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001

NUM_STEM_CELLS = 2
DEPTH_GROWTH = 2  # of the channels, at every halving of the resolution
LAYERS_PER_SEPARABLE = 2


class Step(NamedTuple):
    """One operation of a cell.

    Attributes:
        operation: "separable", "max_pool", "avg_pool" or "identity".
        kernel: Side of the kernel; unused by "identity".
        state: What it works on. 0: the output of the cell before; 1: of the cell before that,
            both brought to the cell's depth; 2 and up: the sums of the blocks so far.
    """

    operation: str
    kernel: int
    state: int


class Block(NamedTuple):
    """Two operations whose results are added, which makes a new state."""

    left: Step
    right: Step


class Cell(NamedTuple):
    """Blocks, and the states that joined together are the output."""

    blocks: Tuple[Block, ...]
    outputs: Tuple[int, ...]


class Network(NamedTuple):
    """Cells in a row, after a strided convolution and two stem cells.

    Attributes:
        cell: Of which the network is made; it halves the resolution where its stride is 2.
        num_cells: Past the stem; those at one and two thirds halve the resolution.
        depth: Channels of a state in the first of them.
        stem_depth: Channels of the first convolution.
        keep_paths: In training, the part of the examples whose paths survive, for the last cell
            and at the end of training.
        training_steps: At which `keep_paths` is reached.
    """

    cell: Cell
    num_cells: int
    depth: int
    stem_depth: int
    keep_paths: float
    training_steps: int = 250000


PNASNET_CELL = Cell(
    blocks=(
        Block(Step("separable", 5, 1), Step("max_pool", 3, 1)),
        Block(Step("separable", 7, 0), Step("max_pool", 3, 0)),
        Block(Step("separable", 5, 0), Step("separable", 3, 0)),
        Block(Step("separable", 3, 4), Step("max_pool", 3, 0)),
        Block(Step("separable", 3, 1), Step("identity", 1, 0)),
    ),
    outputs=(2, 3, 4, 5, 6),
)
PNASNET_LARGE = Network(PNASNET_CELL, num_cells=12, depth=216, stem_depth=96, keep_paths=0.6)


def arg_scope() -> ContextManager[None]:
    """Settings the published networks were trained with; layers add batch norm explicitly."""
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=slim.variance_scaling_initializer(mode="FAN_OUT"),
        weights_regularizer=slim.l2_regularizer(WEIGHT_DECAY),
        activation_fn=None,
        biases_initializer=None,
    )


class _State(NamedTuple):
    """A feature map, and how many times smaller than the image its sides are."""

    values: tf.Tensor
    scale: int


def _smaller(state: _State, other: _State) -> bool:
    """Whether `state` has a lower resolution; by its width as long as that is known."""
    widths = state.values.shape[2], other.values.shape[2]
    return state.scale > other.scale if None in widths else widths[0] != widths[1]


def _point_conv(
    net: tf.Tensor, depth: int, name: str, norm_name: str, stride: int = 1
) -> tf.Tensor:
    return batch_norm(slim.conv2d(net, depth, 1, stride=stride, scope=name), scope=norm_name)


def _halve(net: tf.Tensor, depth: int) -> tf.Tensor:
    """Half the resolution from the even and the odd pixels, half the channels from each."""
    even = slim.conv2d(net[:, ::2, ::2], depth // 2, 1, scope="path1_conv")
    # The odd pixels are padded to as many as there are even ones.
    odd = tf.pad(net, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1::2, 1::2]
    odd = slim.conv2d(odd, depth - depth // 2, 1, scope="path2_conv")
    return batch_norm(tf.concat([even, odd], axis=-1), scope="final_path_bn")


def _fit(previous: Optional[_State], state: _State, depth: int) -> _State:
    """`previous` brought to the resolution of `state` and to `depth` channels."""
    if previous is None:
        return state
    if _smaller(state, previous):
        return _State(_halve(tf.nn.relu(previous.values), depth), state.scale)
    if previous.values.shape[-1] == depth:
        return previous
    net = _point_conv(tf.nn.relu(previous.values), depth, "prev_1x1", "prev_bn")
    return _State(net, state.scale)


def _separable(net: tf.Tensor, depth: int, kernel: int, stride: int) -> tf.Tensor:
    for number in range(1, LAYERS_PER_SEPARABLE + 1):
        name = f"{kernel}x{kernel}_{number}"
        net = slim.separable_conv2d(
            tf.nn.relu(net),
            depth,
            kernel,
            depth_multiplier=1,
            stride=stride if number == 1 else 1,
            scope=f"separable_{name}",
        )
        net = batch_norm(net, scope=f"bn_sep_{name}")
    return net


def _drop_paths(net: tf.Tensor, keep: Optional[tf.Tensor]) -> tf.Tensor:
    """Zeroes whole examples with probability 1 - `keep`, and scales the others up by as much."""
    if keep is None:
        return net
    kept = tf.floor(keep + tf.random.uniform([tf.shape(net)[0], 1, 1, 1]))
    return net * (kept / keep)


def _operate(
    net: tf.Tensor, step: Step, depth: int, stride: int, keep: Optional[tf.Tensor]
) -> tf.Tensor:
    fits = net.shape[-1] == depth
    if step.operation == "identity":
        if stride == 1 and fits:
            return net
        return _point_conv(tf.nn.relu(net), depth, "1x1", "bn_1", stride)
    if step.operation == "separable":
        return _drop_paths(_separable(net, depth, step.kernel, stride), keep)
    pool = tf.nn.max_pool2d if step.operation == "max_pool" else tf.nn.avg_pool2d
    net = pool(net, ksize=step.kernel, strides=stride, padding="SAME")
    return _drop_paths(net if fits else _point_conv(net, depth, "1x1", "bn_1"), keep)


def _build_cell(
    cell: Cell,
    state: _State,
    previous: Optional[_State],
    depth: int,
    stride: int,
    keep: Optional[tf.Tensor],
) -> _State:
    """Builds a cell in the open variable scope."""
    fitted = _fit(previous, state, depth)
    beginning = _point_conv(tf.nn.relu(state.values), depth, "1x1", "beginning_bn")
    states = [beginning, fitted.values]
    for number, block in enumerate(cell.blocks):
        with tf1.variable_scope(f"comb_iter_{number}"):
            results = []
            for side, step in zip(Block._fields, block):
                with tf1.variable_scope(side):
                    # Sums of blocks have the cell's resolution already.
                    step_stride = stride if step.state < NUM_STEM_CELLS else 1
                    results.append(_operate(states[step.state], step, depth, step_stride, keep))
            states.append(results[0] + results[1])
    output = tf.concat([states[index] for index in cell.outputs], axis=-1)
    return _State(output, state.scale * stride)


def _kept_paths(network: Network, number: int, progress: tf.Tensor) -> tf.Tensor:
    """Probability that a path of a cell is kept: falls with the cell's depth and with time."""
    total = network.num_cells + NUM_STEM_CELLS
    return 1.0 - progress * ((number + 1) / total * (1 - network.keep_paths))


def searched_network(
    inputs: tf.Tensor, network: Network = PNASNET_LARGE, *, is_training: bool = False
) -> Dict[str, tf.Tensor]:
    """Builds a network in the open variable and argument scopes, up to its last cell.

    Args:
        inputs: float [B, h, w, 3].
        network: The table.
        is_training: Whether paths are dropped at random, more and more as the global step goes on;
            none are at step 0, or in a graph without one.

    Returns:
        `Stem` and `Cell_0`, `Cell_1`, ..., in order. For PNASNet-5 large `Cell_7` has stride 16,
        `Cell_11` stride 32.
    """
    total = network.num_cells + NUM_STEM_CELLS
    progress: Optional[tf.Tensor] = None
    step = tf1.train.get_global_step()
    if is_training and step is not None and network.keep_paths < 1:
        progress = tf.minimum(1.0, tf.cast(step, tf.float32) / network.training_steps)

    net = slim.conv2d(inputs, network.stem_depth, 3, stride=2, padding="VALID", scope="conv0")
    states = [_State(batch_norm(net, scope="conv0_bn"), 2)]
    reductions = {network.num_cells // 3, network.num_cells * 2 // 3}
    depth = network.depth // DEPTH_GROWTH**NUM_STEM_CELLS
    end_points: Dict[str, tf.Tensor] = {}
    for number in range(total):
        in_stem = number < NUM_STEM_CELLS
        place = number if in_stem else number - NUM_STEM_CELLS
        stride = 2 if in_stem or place in reductions else 1
        if number == NUM_STEM_CELLS or (number > 0 and stride == 2):
            depth *= DEPTH_GROWTH
        keep = None
        if progress is not None:
            keep = _kept_paths(network, number, progress)
        with tf1.variable_scope(f"cell_stem_{place}" if in_stem else f"cell_{place}"):
            state = _build_cell(
                network.cell,
                states[-1],
                states[-2] if len(states) > 1 else None,
                depth,
                stride,
                keep,
            )
        states.append(state)
        if number >= NUM_STEM_CELLS - 1:
            end_points["Stem" if in_stem else f"Cell_{place}"] = state.values
    return end_points
