"""Models of `init --list`: shipped configurations with changes, and the published detectors."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from estimator_det.config.text import nearest
from estimator_det.errors import UsageError


class Model(NamedTuple):
    """A row of `init --list`."""

    name: str
    config: str  # file whose model it starts from
    changes: Tuple[str, ...]  # to this file, in the form of --set
    input_size: str
    parameters: float  # millions, with 90 classes
    step_time: float  # relative to ssd_mobilenet_v1, for training an image on a CPU
    zoo: str  # the published detector of this design


_SSD = "ssd_mobilenet_v1_300x300.config"
_LITE = (
    "model.ssd.feature_extractor.use_depthwise=true",
    "model.ssd.box_predictor.convolutional_box_predictor.use_depthwise=true",
    "model.ssd.box_predictor.convolutional_box_predictor.kernel_size=3",
)
_SHARED = "model.ssd.box_predictor.weight_shared_convolutional_box_predictor"
_FPN_LITE = ("model.ssd.feature_extractor.use_depthwise=true", f"{_SHARED}.use_depthwise=true")
_TYPE = "model.ssd.feature_extractor.type="
_SIZE_320 = (
    "model.ssd.image_resizer.fixed_shape_resizer.height=320",
    "model.ssd.image_resizer.fixed_shape_resizer.width=320",
)
_BATCH_NORM = "{ scale: true decay: 0.99 epsilon: 0.001 }"
_EFFICIENT = "force_use_bias: true activation: SWISH"
_PENALTY = "regularizer { l2_regularizer { weight: 4e-5 } }"
_EFFICIENTDET = (
    _TYPE + "ssd_efficientnet-b0_bifpn_keras",
    "model.ssd.feature_extractor.fpn=null",
    "model.ssd.feature_extractor.override_base_feature_extractor_hyperparams=null",
    "model.ssd.feature_extractor.bifpn="
    "{ min_level: 3 max_level: 7 num_iterations: 3 num_filters: 64 }",
    f"model.ssd.feature_extractor.conv_hyperparams={{ {_EFFICIENT} {_PENALTY} initializer "
    f"{{ truncated_normal_initializer {{ stddev: 0.03 }} }} batch_norm {_BATCH_NORM} }}",
    f"{_SHARED}.conv_hyperparams={{ {_EFFICIENT} {_PENALTY} initializer "
    f"{{ random_normal_initializer {{ stddev: 0.01 }} }} batch_norm {_BATCH_NORM} }}",
    f"{_SHARED}.depth=64",
    f"{_SHARED}.num_layers_before_predictor=3",
    f"{_SHARED}.use_depthwise=true",
    "model.ssd.anchor_generator.multiscale_anchor_generator.scales_per_octave=3",
    "model.ssd.loss.classification_loss.weighted_sigmoid_focal.gamma=1.5",
    "model.ssd.post_processing.batch_non_max_suppression.iou_threshold=0.5",
    "model.ssd.image_resizer.fixed_shape_resizer.height=512",
    "model.ssd.image_resizer.fixed_shape_resizer.width=512",
)
_CENTER_NET = "centernet_resnet50_v1_fpn_figures.config"
_NET = "model.center_net"
_TASK = f"{_NET}.keypoint_estimation_task"
_SIZE_512 = (
    f"{_NET}.image_resizer.fixed_shape_resizer.height=512",
    f"{_NET}.image_resizer.fixed_shape_resizer.width=512",
    f"{_NET}.object_center_params.max_box_predictions=100",
)
_BOX_HEADS = (
    f"{_NET}.object_center_params.center_head_params=null",
    f"{_NET}.object_detection_task.scale_head_params=null",
    f"{_NET}.object_detection_task.offset_head_params=null",
)
_POINT_HEADS = tuple(
    f"{_TASK}[0].{head}_head_params=null" for head in ("heatmap", "offset", "regress")
)
_ONLY_BOXES = (f"{_TASK}=[]",)
MODELS = (
    Model("ssd_mobilenet_v1", _SSD, (), "300x300", 6.8, 1.0, "ssd_mobilenet_v1_coco"),
    Model("ssd_mobilenet_v2", _SSD, (_TYPE + "ssd_mobilenet_v2",), "300x300", 6.1, 0.9,
          "ssd_mobilenet_v2_coco"),
    Model("ssdlite_mobilenet_v2", _SSD, (_TYPE + "ssd_mobilenet_v2", *_LITE), "300x300", 4.5, 1.0,
          "ssdlite_mobilenet_v2_coco"),
    Model("ssdlite_mobilenet_v3_small", _SSD, (_TYPE + "ssd_mobilenet_v3_small", *_LITE,
          *_SIZE_320), "320x320", 1.8, 0.3, "ssd_mobilenet_v3_small_coco"),
    Model("ssdlite_mobilenet_v3_large", _SSD, (_TYPE + "ssd_mobilenet_v3_large", *_LITE,
          *_SIZE_320), "320x320", 3.2, 0.8, "ssd_mobilenet_v3_large_coco"),
    Model("ssd_mobilenet_v1_fpnlite", "ssd_mobilenet_v1_fpn_640x640.config", _FPN_LITE, "640x640",
          3.3, 8.7, "ssd_mobilenet_v1_fpn_coco"),
    Model("ssd_resnet50_fpn", "ssd_resnet50_v1_fpn_640x640.config", (), "640x640", 32.8, 40.4,
          "ssd_resnet_50_fpn_coco"),
    Model("faster_rcnn_resnet50", "faster_rcnn_resnet50_pets.config", (), "600 to 1024", 44.2, 39.6,
          "faster_rcnn_resnet50_coco"),
    Model("mask_rcnn_inception_v2", "mask_rcnn_inception_v2_pets.config", (), "600 to 1024", 13.3,
          19.3, "mask_rcnn_inception_v2_coco"),
    Model("ssd_mobilenet_v2_fpnlite_keras", "ssd_mobilenet_v1_fpn_640x640.config",
          (_TYPE + "ssd_mobilenet_v2_fpn_keras", *_FPN_LITE, *_SIZE_320,
           "model.ssd.feature_extractor.fpn.additional_layer_depth=128", f"{_SHARED}.depth=128",
           f"{_SHARED}.share_prediction_tower=true"),
          "320x320", 2.6, 1.4, "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"),
    Model("ssd_resnet50_fpn_keras", "ssd_resnet50_v1_fpn_640x640.config",
          (_TYPE + "ssd_resnet50_v1_fpn_keras",), "640x640", 32.8, 40.4,
          "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8"),
    Model("faster_rcnn_resnet50_keras", "faster_rcnn_resnet50_pets.config",
          ("model.faster_rcnn.feature_extractor.type=faster_rcnn_resnet50_keras",
           "model.faster_rcnn.image_resizer={ keep_aspect_ratio_resizer { min_dimension: 640 "
           "max_dimension: 640 pad_to_max_dimension: true } }"), "640", 29.2, 27.6,
          "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8"),
    Model("efficientdet_d0", "ssd_mobilenet_v1_fpn_640x640.config", _EFFICIENTDET, "512x512", 5.6,
          6.4, "efficientdet_d0_coco17_tpu-32"),
    Model("centernet_resnet50_fpn", _CENTER_NET, (*_SIZE_512, *_BOX_HEADS, *_ONLY_BOXES),
          "512x512", 25.3, 13.1, "centernet_resnet50_v1_fpn_512x512_coco17_tpu-8"),
    Model("centernet_resnet50_fpn_keypoints", _CENTER_NET,
          (*_SIZE_512, *_BOX_HEADS, *_POINT_HEADS, f"{_TASK}[0].offset_peak_radius=3"),
          "512x512", 25.7, 15.2, "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8"),
    Model("centernet_mobilenet_v2_fpn", _CENTER_NET,
          (f"{_NET}.feature_extractor.type=mobilenet_v2_fpn_sep_conv", f"{_NET}.use_depthwise=true",
           *_SIZE_512, *_BOX_HEADS, *_ONLY_BOXES),
          "512x512", 2.4, 3.0, "centernet_mobilenetv2fpn_512x512_coco17_od"),
)  # fmt: skip
DEFAULT_MODEL, DEFAULT_STRIDE = "ssd_mobilenet_v1", 16  # pixels between cells of the finest map
FINER_MODEL, FINER_STRIDE = "ssd_mobilenet_v2_fpnlite_keras", 8  # for small objects


def find_starter(name: str) -> Model:
    """The model with a name of `MODELS`."""
    models = {model.name: model for model in MODELS}
    if name not in models:
        raise UsageError(
            f"--model: {name!r} is not known{nearest(name, list(models)) or '.'} `estimator-det "
            "init --list` prints all models"
        )
    return models[name]
