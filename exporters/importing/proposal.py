"""Proposes a configuration for a published SSD with MobileNet, from the shapes in its file."""

from __future__ import annotations

import operator
import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from estimator_det import files
from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from estimator_det.protos import model_pb2, pipeline_pb2
from exporters.reading.published import Convolution, Published
from model_fn.checkpoints.explanations import explanation

_HEAD = re.compile(r"BoxPredictor_(\d+)/(BoxEncodingPredictor|ClassPredictor)(_depthwise)?(?:/|$)")
_CODE_SIZE = 4
_DIGITS = 6  # significant digits of fields that are float32
_DEFAULT_SIZE = 300  # pixels, of the published SSDs
_CONFIG_FILE = os.path.join(os.path.dirname(__file__), "mobilenet_ssd.config")
_NEEDED = "give the configuration that the model was trained with, --pipeline_config_path FILE"


def propose_config(published: Published) -> pipeline_pb2.TrainEvalPipelineConfig:
    """A `TrainEvalPipelineConfig` whose model has the shapes in the file.

    Scales of anchors and thresholds come from the published configurations.

    Raises:
        UsageError: if the file is of no SSD with MobileNet v1 or v2, or has other anchors.
    """
    layers = published.structure.convolutions
    names = [name for layer in layers for name in (layer.name, layer.weights.name)]
    names += list(published.arrays)
    kind = _extractor(names)
    boxes, classes, depthwise = _heads(layers)
    if kind is None or not boxes or sorted(boxes) != sorted(classes):
        raise UsageError(
            "--pipeline_config_path: is missing, and a configuration is proposed for SSD with "
            f"MobileNet v1 or v2 only, which this file is not; {_NEEDED}"
        )
    anchors = [_outputs(boxes[level]) // _CODE_SIZE for level in sorted(boxes)]
    if anchors[0] not in (3, 6) or set(anchors[1:]) - {6}:
        raise UsageError(
            f"--pipeline_config_path: is missing, and the model has {anchors} anchors at each "
            f"place of its feature maps, for which no configuration is proposed; {_NEEDED}"
        )
    head_layers = {layer.name for layer in (*boxes.values(), *classes.values())}
    body = [layer for layer in layers if layer.name not in head_layers and layer not in depthwise]
    height, width = published.image_size or (_DEFAULT_SIZE, _DEFAULT_SIZE)
    kernel = (depthwise or [boxes[0]])[0].weights.values.shape[0]
    maps_depthwise = not any(
        layer.kind == "conv" and layer.weights.values.shape[0] == 3 < layer.weights.values.shape[2]
        for layer in body
    )
    config = pipeline.parse_pipeline(files.read_text(_CONFIG_FILE), _CONFIG_FILE)
    ssd = config.model.ssd
    ssd.num_classes = _outputs(classes[0]) // anchors[0] - 1
    ssd.anchor_generator.ssd_anchor_generator.num_layers = len(anchors)
    ssd.anchor_generator.ssd_anchor_generator.reduce_boxes_in_lowest_layer = anchors[0] == 3
    ssd.image_resizer.fixed_shape_resizer.height = height
    ssd.image_resizer.fixed_shape_resizer.width = width
    ssd.box_predictor.convolutional_box_predictor.kernel_size = kernel
    ssd.box_predictor.convolutional_box_predictor.use_depthwise = bool(depthwise)
    ssd.feature_extractor.type = kind
    ssd.feature_extractor.depth_multiplier = _depth_multiplier(kind, body)
    ssd.feature_extractor.use_depthwise = maps_depthwise
    return config


def explain_shapes(published: Published, model: model_pb2.DetectionModel) -> List[str]:
    """A sentence for each option of a model that is another one in the configuration proposed.

    Args:
        model: `DetectionModel` proto of the configuration that is given.
    """
    try:
        proposed = propose_config(published).model.ssd
    except UsageError:
        return []  # another kind of model: nothing can be said
    ssd = model.ssd
    kind = ssd.box_predictor.WhichOneof("box_predictor_oneof")
    if ssd.feature_extractor.type != proposed.feature_extractor.type:
        return []
    extractor = "feature_extractor"
    fields = ["num_classes", f"{extractor}.depth_multiplier", f"{extractor}.use_depthwise"]
    if kind == "convolutional_box_predictor":
        fields += [f"box_predictor.{kind}.use_depthwise", f"box_predictor.{kind}.kernel_size"]
    explanations = []
    for field in fields:
        current, value = map(operator.attrgetter(field), (ssd, proposed))
        if isinstance(current, float):
            current, value = round(current, _DIGITS), round(value, _DIGITS)
        if current != value:
            explanations.append(explanation(f"model.ssd.{field}", value, current, "file"))
    return explanations


def _outputs(layer: Convolution) -> int:
    return int(layer.weights.values.shape[-1])


def _extractor(names: List[str]) -> Optional[str]:
    for scope, kind in (("MobilenetV1", "ssd_mobilenet_v1"), ("MobilenetV2", "ssd_mobilenet_v2")):
        if any(f"FeatureExtractor/{scope}/" in name for name in names):
            return kind
    return None


def _heads(
    layers: Sequence[Convolution],
) -> Tuple[Dict[int, Convolution], Dict[int, Convolution], List[Convolution]]:
    """Layers that predict boxes and classes, by feature map, and depthwise ones before them."""
    boxes: Dict[int, Convolution] = {}
    classes: Dict[int, Convolution] = {}
    depthwise = []
    for layer in layers:
        match = _HEAD.search(layer.weights.name) or _HEAD.search(layer.name)
        if match is None:
            continue
        if layer.kind == "depthwise":
            if match.group(3):  # names that TFLite shares between layers may be of another head
                depthwise.append(layer)
        elif match.group(2) == "ClassPredictor":
            classes[int(match.group(1))] = layer
        else:
            boxes[int(match.group(1))] = layer
    return boxes, classes, depthwise


def _depth_multiplier(kind: str, body: List[Convolution]) -> float:
    """From the layer before the extra feature maps: 1024 outputs in v1, 320 inputs in v2."""
    widest = max((layer for layer in body if layer.kind == "conv"), key=_outputs)
    if kind == "ssd_mobilenet_v1":
        return round(_outputs(widest) / 1024, 2)
    return round(widest.weights.values.shape[2] / 320, 2)
