"""Networks of searched cells: NASNet-A and PNASNet-5.

Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", 2018, and Liu et
al., "Progressive Neural Architecture Search", 2018. A cell is data: five pairs of operations on
earlier states. Variables are named as in the published classifiers, so their checkpoints can be
restored.
"""

from __future__ import annotations

from typing import ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.layers import conv2d, separable_conv2d
from estimator_det.nets.normalization import batch_norm, published_scope

# Settings with which the published large networks were trained.
WEIGHT_DECAY = 0.00004  # PNASNet
NASNET_WEIGHT_DECAY = 0.00005
BATCH_NORM_DECAY = 0.9997
BATCH_NORM_EPSILON = 0.001

NUM_STEM_CELLS = 2
DEPTH_GROWTH = 2  # factor of the channels at every halving of the resolution
LAYERS_PER_SEPARABLE = 2


class CellStep(NamedTuple):
    """One operation of a cell."""

    operation: str  # "separable", "max_pool", "avg_pool" or "identity"
    kernel: int  # height and width of the kernel; unused by "identity"
    # Number of its input. 0: the output of the cell before; 1: of the cell before that, both
    # converted to the cell's depth; 2 and up: the sums of the blocks so far.
    state: int


class Cell(NamedTuple):
    """A cell, as a table."""

    # Blocks of two operations, left and right, whose results are added as a new state.
    blocks: Tuple[Tuple[CellStep, CellStep], ...]
    outputs: Tuple[int, ...]  # states whose concatenation is the output


TRAINING_STEPS = 250000  # step at which `NasNet.keep_paths` is reached


class NasNet(NamedTuple):
    """Cells in a row, after a strided convolution and two stem cells."""

    cell: Cell  # cell of the network; it halves the resolution if its stride is 2
    num_cells: int  # cells after the stem; the resolution is halved at one and two thirds of them
    depth: int  # channels of a state in the first of these cells
    stem_depth: int  # channels of the first convolution
    # In training, the share of examples whose paths survive, for the last cell and at the end of
    # training.
    keep_paths: float
    # Cell of the stem, and before the cells at one and two thirds, which then have stride 1; None
    # if `cell` halves the resolution itself.
    halving_cell: Optional[Cell] = None


PNASNET_CELL = Cell(
    blocks=(
        (CellStep("separable", 5, 1), CellStep("max_pool", 3, 1)),
        (CellStep("separable", 7, 0), CellStep("max_pool", 3, 0)),
        (CellStep("separable", 5, 0), CellStep("separable", 3, 0)),
        (CellStep("separable", 3, 4), CellStep("max_pool", 3, 0)),
        (CellStep("separable", 3, 1), CellStep("identity", 1, 0)),
    ),
    outputs=(2, 3, 4, 5, 6),
)
PNASNET_LARGE = NasNet(PNASNET_CELL, num_cells=12, depth=216, stem_depth=96, keep_paths=0.6)

NASNET_CELL = Cell(
    blocks=(
        (CellStep("separable", 5, 0), CellStep("separable", 3, 1)),
        (CellStep("separable", 5, 1), CellStep("separable", 3, 1)),
        (CellStep("avg_pool", 3, 0), CellStep("identity", 1, 1)),
        (CellStep("avg_pool", 3, 1), CellStep("avg_pool", 3, 1)),
        (CellStep("separable", 3, 0), CellStep("identity", 1, 0)),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
NASNET_HALVING_CELL = Cell(
    blocks=(
        (CellStep("separable", 5, 0), CellStep("separable", 7, 1)),
        (CellStep("max_pool", 3, 0), CellStep("separable", 7, 1)),
        (CellStep("avg_pool", 3, 0), CellStep("separable", 5, 1)),
        (CellStep("identity", 1, 3), CellStep("avg_pool", 3, 2)),
        (CellStep("separable", 3, 2), CellStep("max_pool", 3, 0)),
    ),
    outputs=(3, 4, 5, 6),
)
NASNET_LARGE = NasNet(
    NASNET_CELL,
    num_cells=18,
    depth=168,
    stem_depth=96,
    keep_paths=0.7,
    halving_cell=NASNET_HALVING_CELL,
)


def arg_scope(weight_decay: float = WEIGHT_DECAY) -> ContextManager[None]:
    """Argument scope of the published networks' training; layers add batch norm explicitly."""
    return published_scope(
        BATCH_NORM_DECAY,
        BATCH_NORM_EPSILON,
        weights_initializer=slim.variance_scaling_initializer(mode="FAN_OUT"),
        weights_regularizer=slim.l2_regularizer(weight_decay),
        activation_fn=None,
        biases_initializer=None,
    )


class _ScaledMap(NamedTuple):
    """A feature map, and the factor by which it is smaller than the image."""

    values: tf.Tensor
    scale: int


def _is_smaller(state: _ScaledMap, previous: _ScaledMap) -> bool:
    """True if `state` has a lower resolution than `previous`; widths decide if they are static."""
    widths = state.values.shape[2], previous.values.shape[2]
    return state.scale > previous.scale if None in widths else widths[0] != widths[1]


def _point_conv(
    net: tf.Tensor, depth: int, name: str, norm_name: str, stride: int = 1
) -> tf.Tensor:
    return batch_norm(conv2d(net, depth, 1, stride=stride, scope=name), scope=norm_name)


def _halve(net: tf.Tensor, depth: int) -> tf.Tensor:
    """Halves the resolution: half the channels from the even pixels, half from the odd ones."""
    even = conv2d(net[:, ::2, ::2], depth // 2, 1, scope="path1_conv")
    # Padded, because there may be one odd pixel less than even ones.
    odd = tf.pad(net, [[0, 0], [0, 1], [0, 1], [0, 0]])[:, 1::2, 1::2]
    odd = conv2d(odd, depth - depth // 2, 1, scope="path2_conv")
    return batch_norm(tf.concat([even, odd], axis=-1), scope="final_path_bn")


def _fit(previous: Optional[_ScaledMap], state: _ScaledMap, depth: int) -> _ScaledMap:
    """Converts `previous` to the resolution of `state` and to `depth` channels."""
    if previous is None:
        return state
    if _is_smaller(state, previous):
        return _ScaledMap(_halve(tf.nn.relu(previous.values), depth), state.scale)
    if previous.values.shape[-1] == depth:
        return previous
    net = _point_conv(tf.nn.relu(previous.values), depth, "prev_1x1", "prev_bn")
    return _ScaledMap(net, state.scale)


def _separable(net: tf.Tensor, depth: int, kernel: int, stride: int) -> tf.Tensor:
    for number in range(1, LAYERS_PER_SEPARABLE + 1):
        name = f"{kernel}x{kernel}_{number}"
        net = separable_conv2d(
            tf.nn.relu(net),
            depth,
            kernel,
            stride=stride if number == 1 else 1,
            scope=f"separable_{name}",
        )
        net = batch_norm(net, scope=f"bn_sep_{name}")
    return net


def _drop_paths(net: tf.Tensor, keep: Optional[tf.Tensor]) -> tf.Tensor:
    """Zeroes examples with probability 1 - `keep`, and scales the others by 1 / `keep`."""
    if keep is None:
        return net
    # 1 with probability `keep`, else 0.
    kept = tf.floor(keep + tf.random.uniform([tf.shape(net)[0], 1, 1, 1]))
    return net * (kept / keep)


def _operate(
    net: tf.Tensor, step: CellStep, depth: int, stride: int, keep: Optional[tf.Tensor]
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
    state: _ScaledMap,
    previous: Optional[_ScaledMap],
    depth: int,
    stride: int,
    keep: Optional[tf.Tensor],
) -> _ScaledMap:
    """Builds a cell in the open variable scope."""
    fitted_previous = _fit(previous, state, depth)
    beginning = _point_conv(tf.nn.relu(state.values), depth, "1x1", "beginning_bn")
    states = [beginning, fitted_previous.values]
    for number, block in enumerate(cell.blocks):
        with tf1.variable_scope(f"comb_iter_{number}"):
            results = []
            for side, step in zip(("left", "right"), block):
                with tf1.variable_scope(side):
                    # Sums of blocks have the cell's resolution already.
                    step_stride = stride if step.state < NUM_STEM_CELLS else 1
                    results.append(_operate(states[step.state], step, depth, step_stride, keep))
            states.append(results[0] + results[1])
    output = tf.concat([states[index] for index in cell.outputs], axis=-1)
    return _ScaledMap(output, state.scale * stride)


class _PlacedCell(NamedTuple):
    """A cell and its place in a network."""

    scope: str  # variable scope of the cell
    cell: Cell  # the table
    depth: int  # channels of a state
    stride: int  # stride of the cell
    previous: int = -2  # index of the output that is its `previous`; -1 would be its direct input

    @property
    def end_point(self) -> str:
        return "Stem" if self.scope == f"cell_stem_{NUM_STEM_CELLS - 1}" else self.scope.title()


def _places(network: NasNet) -> List[_PlacedCell]:
    """Lists the cells of a network, in order."""
    halving = network.halving_cell
    places = [
        _PlacedCell(
            f"cell_stem_{number}",
            halving or network.cell,
            network.depth // DEPTH_GROWTH ** (NUM_STEM_CELLS - number),
            stride=2,
        )
        for number in range(NUM_STEM_CELLS)
    ]
    depth = network.depth
    halved_at = [network.num_cells // 3, network.num_cells * 2 // 3]
    for number in range(network.num_cells):
        place = _PlacedCell(f"cell_{number}", network.cell, depth, stride=1)
        if number in halved_at:
            depth *= DEPTH_GROWTH
            place = place._replace(depth=depth)
            if halving is None:
                place = place._replace(stride=2)
            else:
                scope = f"reduction_cell_{halved_at.index(number)}"
                places.append(_PlacedCell(scope, halving, depth, stride=2))
                # The next cell does not use the halving cell's `previous`, but the output before
                # that cell.
                place = place._replace(previous=-3)
        places.append(place)
    return places


def _kept_paths(network: NasNet, number: int, progress: tf.Tensor) -> tf.Tensor:
    """Probability that a path is kept; falls with the cell's place and with the step."""
    total = len(_places(network))
    return 1.0 - progress * ((number + 1) / total * (1 - network.keep_paths))


def _build_cells(
    network: NasNet, numbers: Sequence[int], states: Sequence[_ScaledMap], is_training: bool
) -> Dict[str, tf.Tensor]:
    """Builds the cells of these places in the open variable scope, and returns their outputs.

    States are the outputs before the first of these cells, the direct input last.
    """
    progress: Optional[tf.Tensor] = None
    step = tf1.train.get_global_step()
    if is_training and step is not None and network.keep_paths < 1:
        progress = tf.minimum(1.0, tf.cast(step, tf.float32) / TRAINING_STEPS)
    places = _places(network)
    outputs = list(states)
    end_points: Dict[str, tf.Tensor] = {}
    for number in numbers:
        place = places[number]
        keep = None if progress is None else _kept_paths(network, number, progress)
        previous = outputs[place.previous] if len(outputs) >= -place.previous else None
        with tf1.variable_scope(place.scope):
            output = _build_cell(place.cell, outputs[-1], previous, place.depth, place.stride, keep)
        outputs.append(output)
        end_points[place.end_point] = output.values
    return end_points


def searched_network(
    inputs: tf.Tensor,
    network: NasNet = PNASNET_LARGE,
    *,
    is_training: bool = False,
    last: str = "",
) -> Dict[str, tf.Tensor]:
    """Builds a network in the open variable and argument scopes.

    Args:
        inputs: float [B, h, w, 3].
        network: the table.
        is_training: True if paths are dropped at random, with a probability that grows with the
            global step, from 0 at step 0; it is 0 in a graph without a global step.
        last: name of the last activation, such as `Cell_7`; by default the network's last cell.

    Returns:
        `Stem` and `Cell_0`, `Cell_1`, ..., in order, and `Reduction_Cell_0` and so on if the
        network has a cell for halving. For PNASNet-5 large `Cell_7` has stride 16, `Cell_11` stride
        32; for NASNet-A large `Cell_11` has stride 16.
    """
    net = conv2d(inputs, network.stem_depth, 3, stride=2, padding="VALID", scope="conv0")
    state = _ScaledMap(batch_norm(net, scope="conv0_bn"), 2)
    names = [place.end_point for place in _places(network)]
    numbers = range(names.index(last) + 1 if last else len(names))
    end_points = _build_cells(network, numbers, [state], is_training)
    return {name: values for name, values in end_points.items() if name != "Cell_Stem_0"}


def rest_of_network(
    previous: tf.Tensor,  # float [N, h, w, C], output of the cell before `after`
    inputs: tf.Tensor,  # float [N, h, w, C], output of the cell `after`
    network: NasNet,  # the table
    *,
    after: str,  # name of that activation
    is_training: bool = False,  # see `searched_network`
) -> tf.Tensor:
    """Builds the cells of a network after one of its activations, with a ReLU at the end.

    Returns:
        The last activation, [N, h', w', C'].
    """
    names = [place.end_point for place in _places(network)]
    numbers = range(names.index(after) + 1, len(names))
    states = [_ScaledMap(previous, 1), _ScaledMap(inputs, 1)]
    *_, last = _build_cells(network, numbers, states, is_training).values()
    return tf.nn.relu(last)
