"""CenterNet extractors on ResNet v1 and v2, MobileNet v2 and stacked hourglasses."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, Sequence, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors.center_net.registry import EXTRACTORS, OWN_FIELDS
from estimator_det.extractors.maps import MapLayout, MapOptions
from estimator_det.extractors.recipe import Recipe, subtract_channel_means
from estimator_det.images.resize import pad_to_multiple
from estimator_det.nets import hourglass, inverted_residual, mobilenet, resnet
from estimator_det.nets.hyperparams import with_bias
from estimator_det.nets.layers import EXPLICIT
from estimator_det.nets.necks import enlarging
from estimator_det.nets.normalization import batch_norm, published_scope
from estimator_det.nets.object_paths import KERAS, Paths, functional, nested

NECK = "enlarging"  # variable scope of the layers after the backbone
DECONVOLVED = (256, 128, 64)  # channels of deconvolutions
RESNET_BATCH_NORM = (0.99, 1.001e-5)  # decay and epsilon of Keras' own ResNets
RESNET_LAYERS = (50, 101)
STEP = 32  # images are padded with zeros to multiples of this number of pixels
HOURGLASS_STEP = 128

Activations = Dict[str, tf.Tensor]


def _paths(
    backbone_owner: str, owner: str, order: Callable[[Sequence[str]], Sequence[str]] = list
) -> Callable[[Sequence[str]], Paths]:
    """Paths of a backbone, and of the layers after it, of which it is the first one."""

    def paths(scopes: Sequence[str]) -> Paths:
        neck = [scope for scope in scopes if scope.startswith(f"{NECK}/")]
        backbone = functional(order([scope for scope in scopes if scope not in neck]))
        enlarging_paths = functional(["backbone", *neck])
        del enlarging_paths["backbone"]
        return {**nested(backbone_owner, backbone), **nested(owner, enlarging_paths)}

    return paths


@contextlib.contextmanager
def _neck() -> Iterator[None]:
    with tf1.variable_scope(NECK), enlarging.arg_scope():
        yield


def _reversed_means(images: tf.Tensor) -> tf.Tensor:
    """Subtracts channel means, and orders the channels blue, green, red."""
    return tf.reverse(subtract_channel_means(images), [-1])


def _resnet(
    scope: str, normalizer: Callable[..., tf.Tensor], layout: MapLayout, **settings: Any
) -> Recipe[MapLayout]:
    return Recipe(
        scope=f"{scope}{KERAS}",
        arg_scope=functools.partial(
            published_scope,
            *RESNET_BATCH_NORM,
            weights_initializer=slim.xavier_initializer(),
            weights_regularizer=None,
            activation_fn=tf.nn.relu,
            normalizer_fn=normalizer,
        ),
        layout=layout,
        min_size=1,
        ignores=OWN_FIELDS,
        classifier="_base_model",
        object_paths=_paths("_base_model", "_feature_extractor_model", resnet.keras_order),
        **settings,
    )


def _resnet_fpn(layers: int) -> Recipe[MapLayout]:
    def backbone(images: tf.Tensor, _: MapOptions) -> Activations:
        return resnet.keras_resnet_v1(pad_to_multiple(images, STEP), layers, pool_padding=EXPLICIT)

    def pyramid(blocks: Activations, _: MapOptions) -> Tuple[tf.Tensor, ...]:
        with _neck():
            maps = [blocks[f"block{number}"] for number in (4, 3, 2, 1)]
            return (enlarging.top_down_map(maps, DECONVOLVED, DECONVOLVED[-1]),)

    layout, normalizer = MapLayout(backbone, pyramid), with_bias(batch_norm)
    return _resnet(f"resnet_v1_{layers}", normalizer, layout, normalize=_reversed_means)


def _resnet_v2(layers: int) -> Recipe[MapLayout]:
    def backbone(images: tf.Tensor, _: MapOptions) -> Activations:
        return {"output": resnet.keras_resnet_v2(pad_to_multiple(images, STEP), layers)}

    pyramid = functools.partial(_deconvolved, name="output", kernel=3)
    return _resnet(f"resnet_v2_{layers}", batch_norm, MapLayout(backbone, pyramid))


def _deconvolved(
    activations: Activations, _: MapOptions, name: str, kernel: int
) -> Tuple[tf.Tensor, ...]:
    with _neck():
        return (enlarging.deconvolved_map(activations[name], DECONVOLVED, kernel),)


for _layers in RESNET_LAYERS:
    EXTRACTORS.register(f"resnet_v1_{_layers}_fpn")(_resnet_fpn(_layers))
    EXTRACTORS.register(f"resnet_v2_{_layers}")(_resnet_v2(_layers))


@contextlib.contextmanager
def _mobilenet_scope() -> Iterator[None]:
    """Argument scope of MobileNets without penalties, which CenterNet does not have."""
    with (
        mobilenet.v1_arg_scope(),
        slim.arg_scope([slim.conv2d, slim.separable_conv2d], weights_regularizer=None),
    ):
        yield


def _mobilenet_v2(images: tf.Tensor, options: MapOptions) -> Activations:
    depth = inverted_residual.depth_function(options.depth_multiplier, inverted_residual.DIVISOR)
    images = pad_to_multiple(images, STEP)
    return inverted_residual.inverted_residual_net(
        images, inverted_residual.V2_LAYERS, depth, tf2_line=True
    )


MOBILENET = f"MobilenetV2{KERAS}"
FPN_MAPS = ("layer_19", "layer_11", "layer_7", "layer_4")  # activations, the coarsest first
FPN_WIDTHS: Tuple[int, ...] = (64, 32, 24)


def _mobilenet_fpn(
    activations: Activations, options: MapOptions, is_separable: bool
) -> Tuple[tf.Tensor, ...]:
    with _neck():
        enlarged = enlarging.top_down_map(
            [activations[name] for name in FPN_MAPS],
            FPN_WIDTHS,
            FPN_WIDTHS[-1],
            is_separable=is_separable or options.use_depthwise,
            interpolation=options.interpolation,
        )
    return (enlarged,)


EXTRACTORS.register("mobilenet_v2")(
    Recipe(
        scope=MOBILENET,
        arg_scope=_mobilenet_scope,
        layout=MapLayout(
            _mobilenet_v2, functools.partial(_deconvolved, name=FPN_MAPS[0], kernel=1)
        ),
        min_size=1,
        ignores=("use_separable_conv", "upsampling_interpolation"),
        classifier="_network",
        object_paths=_paths("_network/layer_with_weights-0", "_network"),
    )
)
# The Object Detection API builds plain convolutions for the second type, but checkpoints of
# published models that name it have separable ones.
for _type, _is_separable in (("mobilenet_v2_fpn", False), ("mobilenet_v2_fpn_sep_conv", True)):
    EXTRACTORS.register(_type)(
        Recipe(
            scope=MOBILENET,
            arg_scope=_mobilenet_scope,
            layout=MapLayout(
                _mobilenet_v2, functools.partial(_mobilenet_fpn, is_separable=_is_separable)
            ),
            min_size=1,
            classifier="_base_model",
            object_paths=_paths("_base_model", "_feature_extractor_model"),
        )
    )


def _hourglass(images: tf.Tensor, _: MapOptions) -> Activations:
    maps = hourglass.hourglass_network(pad_to_multiple(images, HOURGLASS_STEP))
    return {f"output_{number}": features for number, features in enumerate(maps)}


EXTRACTORS.register("hourglass_104")(
    Recipe(
        scope=f"hourglass_104{KERAS}",
        arg_scope=hourglass.arg_scope,
        layout=MapLayout(_hourglass, lambda activations, _: tuple(activations.values())),
        normalize=tf.identity,
        min_size=1,
        ignores=OWN_FIELDS,
        object_paths=hourglass.object_paths,
    )
)
