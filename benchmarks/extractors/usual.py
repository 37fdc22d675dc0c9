"""The settings each extractor is measured with: those of its published configurations."""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, List, NamedTuple

from google.protobuf import text_format

from estimator_det.protos import pipeline_pb2, ssd_pb2

NUM_CLASSES = 37

_HYPERPARAMS = """
conv_hyperparams {
  activation: RELU_6
  regularizer { l2_regularizer { weight: 0.00004 } }
  initializer { random_normal_initializer { stddev: 0.01 } }
  batch_norm { scale: true decay: 0.997 epsilon: 0.001 }
}
"""
OVERRIDE = "override_base_feature_extractor_hyperparams: true"


class Heads(NamedTuple):
    """A box predictor, anchors and a loss in text form; `{maps}` is the number of feature maps."""

    box_predictor: str
    anchor_generator: str
    loss: str


_ANCHORS = """ssd_anchor_generator {{ num_layers: {maps} aspect_ratios: [1, 2, 0.5, 3, 0.3333] }}"""
_MINED = """
classification_loss {{ weighted_sigmoid {{}} }} localization_loss {{ weighted_smooth_l1 {{}} }}
hard_example_miner {{
  num_hard_examples: 3000 iou_threshold: 0.99 loss_type: CLASSIFICATION
  max_negatives_per_positive: 3
}}
"""
_FOCAL = """
classification_loss {{ weighted_sigmoid_focal {{ alpha: 0.25 gamma: 2 }} }}
localization_loss {{ weighted_smooth_l1 {{}} }}
"""


def _convolutional(settings: str) -> Heads:
    return Heads(f"convolutional_box_predictor {{{{ {settings} CONV }}}}", _ANCHORS, _MINED)


def _shared(settings: str, anchors: str) -> Heads:
    return Heads(
        f"weight_shared_convolutional_box_predictor {{{{ {settings} CONV }}}}", anchors, _FOCAL
    )


CLASSIC = _convolutional("kernel_size: 1 use_dropout: false")
LITE = _convolutional("kernel_size: 3 use_depthwise: true use_dropout: false")
POOLED = _shared(
    "depth: 512 num_layers_before_predictor: 1 kernel_size: 1 share_prediction_tower: true",
    _ANCHORS.replace("num_layers", "reduce_boxes_in_lowest_layer: false num_layers"),
)


def _pyramid(settings: str, levels: str) -> Heads:
    return _shared(
        f"num_layers_before_predictor: 4 kernel_size: 3 {settings}",
        "multiscale_anchor_generator {{ " + levels + " aspect_ratios: [1, 2, 0.5] }}",
    )


FPN = _pyramid("depth: 256", "min_level: 3 max_level: 7")
MNASFPN = _pyramid(
    "depth: 64 share_prediction_tower: true use_depthwise: true", "min_level: 3 max_level: 6"
)


class Usual(NamedTuple):
    """Settings that published configurations of an extractor have in common."""

    size: int = 300  # height and width of an image, in pixels
    heads: Heads = CLASSIC
    options: str = ""  # fields of the `SsdFeatureExtractor` message
    maps: int = 6  # how many feature maps it makes


# The first glob that matches a type counts; a type that none names gets the defaults.
_LITE = Usual(320, LITE, f"use_depthwise: true {OVERRIDE}")
USUAL: Dict[str, Usual] = {
    "embedded_ssd_*": Usual(256, CLASSIC, "depth_multiplier: 0.125", maps=5),
    "ssd_inception_*": Usual(options=OVERRIDE),
    "*_mnasfpn": Usual(
        320, MNASFPN, "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }", maps=4
    ),
    "*_fpn": Usual(640, FPN, OVERRIDE, maps=5),
    "*_ppn": Usual(300, POOLED, OVERRIDE),
    "ssd_mobiledet_*": _LITE,
    "ssd_mobilenet_edgetpu": _LITE,
    "ssd_mobilenet_v3_*": _LITE,
    "ssd_spaghettinet": Usual(320, LITE, maps=5),
}


def usual(kind: str) -> Usual:
    """The settings of a type."""
    for pattern, settings in USUAL.items():
        if fnmatch.fnmatch(kind, pattern):
            return settings
    return Usual()


def extractor_message(kind: str) -> Any:
    """The `SsdFeatureExtractor` message of a type."""
    text = f"type: '{kind}' min_depth: 16 {usual(kind).options} {_HYPERPARAMS}"
    return text_format.Parse(text, ssd_pb2.SsdFeatureExtractor())


def pipeline_message(kind: str, size: int, batch: int) -> Any:
    """A whole pipeline around an extractor, without data, for images of `size` x `size`."""
    settings = usual(kind)
    heads = [
        part.format(maps=settings.maps).replace("CONV", _HYPERPARAMS) for part in settings.heads
    ]
    text = f"""
    model {{ ssd {{
      num_classes: {NUM_CLASSES}
      image_resizer {{ fixed_shape_resizer {{ height: {size} width: {size} }} }}
      box_coder {{ faster_rcnn_box_coder {{
        y_scale: 10 x_scale: 10 height_scale: 5 width_scale: 5
      }} }}
      matcher {{ argmax_matcher {{
        matched_threshold: 0.5 unmatched_threshold: 0.5 force_match_for_each_row: true
      }} }}
      similarity_calculator {{ iou_similarity {{}} }}
      encode_background_as_zeros: true
      box_predictor {{ {heads[0]} }}
      anchor_generator {{ {heads[1]} }}
      loss {{ {heads[2]} }}
      normalize_loss_by_num_matches: true
      post_processing {{
        batch_non_max_suppression {{
          score_threshold: 1e-8 iou_threshold: 0.6
          max_detections_per_class: 100 max_total_detections: 100
        }}
        score_converter: SIGMOID
      }}
    }} }}
    train_config {{
      batch_size: {batch}
      optimizer {{
        momentum_optimizer {{
          learning_rate {{ constant_learning_rate {{ learning_rate: 1e-6 }} }}
          momentum_optimizer_value: 0.9
        }}
        use_moving_average: false
      }}
    }}
    """
    config = text_format.Parse(text, pipeline_pb2.TrainEvalPipelineConfig())
    config.model.ssd.feature_extractor.CopyFrom(extractor_message(kind))
    return config


def types() -> Dict[str, List[str]]:
    """Every registered type, and its other names."""
    import estimator_det.extractors  # noqa: F401  (fills the registry)
    from estimator_det.extractors.ssd.recipe import EXTRACTORS

    names_of: Dict[Any, List[str]] = {}
    for name in EXTRACTORS:
        names_of.setdefault(EXTRACTORS.get(name), []).append(name)
    return {first: others for first, *others in sorted(names_of.values())}
