"""Facts about extractors of two-stage detectors, and their table."""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple

from benchmarks.extractors.graphs import SHORT, multiply_adds
from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.extractors.two_stage import recipe
from estimator_det.protos import faster_rcnn_pb2

SIZE = 600  # height and width of an image, in pixels
# Side of a crop after max pooling in the published configurations.
CROPS = {"faster_rcnn_inception_resnet_v2": 17, "faster_rcnn_nas": 17, "faster_rcnn_pnas": 17}
USUAL_CROP = 7

COLUMNS = (
    "Type",
    "Also as",
    "Parameters (M)",
    "Multiply-adds (G)",
    "Strides",
    "Feature map",
    "Crop",
    "Box features",
    "Ignores",
)

INTRODUCTION = f"""
## Two stages

Types of Faster R-CNN, R-FCN, Mask R-CNN and Context R-CNN. All of them refuse `fpn`.

* **Parameters**: trainable ones of the first and of the second stage, in millions. Those of a
  ResNet's first stage include a block 4 that nothing uses, as in the reference's checkpoints.
* **Multiply-adds**: for the feature map of an image of {SIZE} x {SIZE} pixels at stride 16, and for
  one box.
* **Strides**: what `first_stage_features_stride` may be.
* **Feature map** of such an image, **Crop** of it for one box and its **Box features**:
  height x width x channels. `initial_crop_size` and `maxpool_…` may choose other crops.

Configurations in `estimator_det/configs` to start from:

* `faster_rcnn_inception_v2_pets.config`, `faster_rcnn_resnet50_pets.config`: boxes, your own data.
* `mask_rcnn_inception_v2_pets.config`: boxes and masks, your own data.
* `faster_rcnn_resnet50_640x640.config`: boxes, on a TPU.
* `mask_rcnn_mobilenet_v1_shapes.config`: small; `estimator-det demo --model mask_rcnn` trains it.
"""


class Facts(NamedTuple):
    """A row of the table."""

    parameters: List[int]  # trainable, of the first and of the second stage
    multiply_adds: List[int]  # of an image and of a box
    strides: List[int]
    maps: List[List[int]]  # height, width, channels of the feature map, a crop and its features
    ignores: List[str]


def types() -> Dict[str, List[str]]:
    """Every registered type, and its other names."""
    import estimator_det.extractors  # noqa: F401  (fills the registry)

    names_of: Dict[Any, List[str]] = {}
    for name in recipe.EXTRACTORS:
        names_of.setdefault(recipe.EXTRACTORS.get(name), []).append(name)
    return {first: others for first, *others in sorted(names_of.values())}


def _message(kind: str, stride: int = 16) -> Any:
    return faster_rcnn_pb2.FasterRcnnFeatureExtractor(type=kind, first_stage_features_stride=stride)


def _strides(kind: str) -> List[int]:
    """Strides that are accepted and change the feature map's."""
    found = []
    for stride in recipe.STRIDES:
        try:
            extractor = recipe.make_extractor(_message(kind, stride), is_training=True)
        except ConfigError:
            continue
        found += [stride] if extractor.stride == stride else []
    return found


def facts(kind: str) -> Facts:
    """All about one type, from a graph built for it."""
    extractor = recipe.make_extractor(_message(kind), is_training=False)
    side = CROPS.get(kind, USUAL_CROP)
    with tf.Graph().as_default():
        features = extractor.proposal_features(tf1.placeholder(tf.float32, [1, SIZE, SIZE, 3]))
        crops = tf1.placeholder(tf.float32, [1, side, side, features.shape[-1]])
        box_features = extractor.box_features(crops)
        parameters = [
            sum(math.prod(v.shape.as_list()) for v in tf1.trainable_variables(f"{scope}/"))
            for scope in (recipe.FIRST_STAGE_SCOPE, recipe.SECOND_STAGE_SCOPE)
        ]
        counts = [multiply_adds([end.op]) for end in (features, box_features)]
    known = getattr(extractor, "recipe", None)
    return Facts(
        parameters=parameters,
        multiply_adds=counts,
        strides=_strides(kind),
        maps=[map_.shape.as_list()[1:] for map_ in (features, crops, box_features)],
        ignores=[SHORT.get(field, field) for field in known.ignores] if known else [],
    )


def cells(kind: str, aliases: List[str], found: Facts) -> List[str]:
    """The row of a type."""
    return [
        f"`{kind}`",
        "<br>".join(f"`{alias}`" for alias in aliases),
        " + ".join(f"{count / 1e6:.2f}" for count in found.parameters),
        " + ".join(f"{count / 1e9:.2f}" for count in found.multiply_adds),
        ", ".join(map(str, found.strides)),
        *(" x ".join(map(str, sides)) for sides in found.maps),
        "<br>".join(f"`{field}`" for field in found.ignores),
    ]
