"""The target of rules for TPU, and those about the model: static shapes, and operations it has."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterator, List, Optional, Tuple

from estimator_det.config.problem import Problem
from estimator_det.config.text import entries
from estimator_det.protos import losses_pb2, pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig

SSD, RCNN = "model.ssd", "model.faster_rcnn"
# Decays at which moving averages of batch norm follow within the few steps of large batches.
LEAST_DECAY, MOST_DECAY = 0.97, 0.997
_ROUNDING = 1e-6  # relative rounding of fields that are 32-bit floats
# Backbones whose own moving averages are slower than that: 0.9997.
_SLOW_BACKBONES = (
    "embedded_ssd_mobilenet_v1",
    "ssd_inception",
    "ssd_mobilenet_edgetpu",
    "ssd_mobilenet_v1",
    "ssd_mobilenet_v2",
    "ssd_mobilenet_v3",
    "ssd_pnasnet",
)
_OTHER_BACKBONES = ("ssd_mobilenet_v2_mnasfpn",)
_GATHERED_BY_ROW = "targets are gathered row by row, which the TPU does one after the other"
# Fields that choose other kernels for the same result: assignment -> reason for it.
_SWITCHES = {
    f"{RCNN}.use_static_shapes=true": "the number of proposals depends on the image",
    f"{RCNN}.use_matmul_gather_in_matcher=true": _GATHERED_BY_ROW,
    f"{RCNN}.use_matmul_crop_and_resize=true": "regions are cropped by an operation that TPUs do "
    "not have",
    f"{SSD}.matcher.argmax_matcher.use_matmul_gather=true": _GATHERED_BY_ROW,
    f"{SSD}.inplace_batchnorm_update=true": "batch norm adds the updates of its moving averages to "
    "a graph collection; training on a TPU needs them inside the layers",
}
# Switches for inference alone.
_STATIC_KERNELS = (
    f"{SSD}.post_processing.batch_non_max_suppression.static_kernel=true",
    f"{RCNN}.use_static_shapes_for_eval=true",
    f"{RCNN}.second_stage_post_processing.batch_non_max_suppression.static_kernel=true",
)
_SIZE_BY_IMAGE = "the size of a batch depends on its images"
_FOCAL_EDITS = (
    f"{SSD}.loss.classification_loss={{ weighted_sigmoid_focal {{ alpha: 0.25 gamma: 2.0 }} }}",
    f"{SSD}.post_processing.score_converter=SIGMOID",
)
# Problems of operations that a TPU cannot run; the others are about sizes, speed and results.
_UNFIT_OPERATIONS = (
    f"{RCNN}.use_matmul_crop_and_resize",
    f"{RCNN}.hard_example_miner",
    f"{SSD}.loss.hard_example_miner",
)
# Problems of messages by their presence.
_UNFIT = (
    Problem(
        "error",
        f"{RCNN}.hard_example_miner",
        "selects examples by non-maximum suppression within the train step",
        "a sample of second_stage_batch_size regions then replaces it; "
        "second_stage_balance_fraction sets the share of objects",
        (f"{RCNN}.hard_example_miner=null",),
    ),
    *(
        Problem(
            "error",
            f"{model}.image_resizer.{kind}",
            _SIZE_BY_IMAGE,
            "choose the height and width that the objects need",
            (f"{model}.image_resizer={{ fixed_shape_resizer {{ height: 640 width: 640 }} }}",),
        )
        for model in (SSD, RCNN)
        for kind in ("identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer")
    ),
    Problem(
        "error",
        f"{SSD}.matcher.bipartite_matcher",
        "matches in a loop whose length depends on the boxes",
        "choose its thresholds",
        (
            f"{SSD}.matcher={{ argmax_matcher {{ force_match_for_each_row: true "
            "use_matmul_gather: true } }",
        ),
    ),
    Problem(
        "warning",
        f"{SSD}.loss.random_example_sampler",
        "sorts all anchors twice in each step, which is slow on TPU",
        "the expected loss needs no sample; or use the focal loss",
        (
            f"{SSD}.loss.random_example_sampler=null",
            f"{SSD}.loss.expected_loss_weights=EXPECTED_SAMPLING",
        ),
    ),
    Problem(
        "error",
        "graph_rewriter",
        "asks for simulated quantization, which is not supported yet on a TPU",
        "the model then trains in float; or train on CPU or GPU",
        ("graph_rewriter=null",),
    ),
)


@dataclasses.dataclass(frozen=True)
class Target:
    """Target that a configuration is to run on."""

    num_shards: int = 8  # TPU cores that share a batch, at least 1
    model_dir: Optional[str] = None  # folder of checkpoints; None if it is not known yet
    # True if predictions are computed on the TPU too, not the training alone.
    inference: bool = False
    # True if the machine of the TPU has the files, as a TPU VM of one host may; otherwise they
    # must lie in Google Cloud Storage.
    local_files: bool = False


def unless(
    config: Config,
    edit: str,
    why: str,
    severity: str = "error",
    *,
    safe: bool = True,
    remedy: str = "",
) -> Iterator[Problem]:
    """A problem "is <value>: <why>" unless the field of `edit`, PATH=VALUE, has this value.

    None if the path leads through a member of a oneof that is not chosen.
    """
    path, _, wanted = edit.partition("=")
    value: Any = config
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        if value.DESCRIPTOR.fields_by_name[name].containing_oneof and not value.HasField(name):
            return
        value = getattr(value, name)[int(index)] if index else getattr(value, name)
    value_text = str(value).lower()
    if value_text != wanted:
        yield Problem(severity, path, f"is {value_text}: {why}", remedy, (edit,), safe)


def check_model(config: Config, target: Target) -> Iterator[Problem]:
    """Problems of the model, and of its quantization, that are none on other devices."""
    for kind in ("ssd", "faster_rcnn"):
        resizer = getattr(config.model, kind).image_resizer.keep_aspect_ratio_resizer
        yield from unless(
            config,
            f"model.{kind}.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension=true",
            _SIZE_BY_IMAGE,
            remedy=f"images become {resizer.max_dimension} x {resizer.max_dimension}",
        )
    paths = {entry.path for entry in entries(config)}
    yield from (problem for problem in _UNFIT if problem.field in paths)
    for edit, why in _SWITCHES.items():
        yield from unless(config, edit, why)
    yield from _check_advice(config)
    if config.model.HasField("ssd"):
        yield from _check_class_imbalance(config.model.ssd.loss)
        if not config.model.ssd.freeze_batchnorm:
            yield from _check_batch_norm(config)
    if target.inference:
        for edit in _STATIC_KERNELS:
            yield from unless(
                config,
                edit,
                "training on TPU works, but an exported model suppresses boxes with kernels that "
                "TPUs do not have",
                "warning",
                remedy="results are the same; it is slower on CPU",
            )


def unfit_operations(config: Config) -> List[Problem]:
    """Problems of parts without a registry that have operations a TPU cannot run."""
    problems = check_model(config, Target())
    return [problem for problem in problems if problem.field in _UNFIT_OPERATIONS]


def _check_advice(config: Config) -> Iterator[Problem]:
    yield from unless(
        config,
        f"{RCNN}.clip_anchors_to_image=true",
        "anchors across the border are not trained, as in the reference's models for CPU and GPU; "
        "its models for TPU are trained on all anchors, cut at the border",
        "advice",
        safe=False,
    )
    for model in (SSD, RCNN):
        yield from unless(
            config,
            f"{model}.return_raw_detections_during_predict=false",
            "every train step decodes all boxes, and nothing reads them",
            "advice",
            safe=False,
            remedy="set it in the configuration that exports the model",
        )


def _check_class_imbalance(loss: losses_pb2.Loss) -> Iterator[Problem]:
    """Something must limit the weight of the many easy negatives, and mining cannot."""
    path = f"{SSD}.loss"
    kind = loss.classification_loss.WhichOneof("classification_loss")
    if loss.HasField("hard_example_miner"):
        edits: Tuple[str, ...] = (f"{path}.hard_example_miner=null",)
        yield Problem(
            "error",
            f"{path}.hard_example_miner",
            "selects anchors by non-maximum suppression within the train step",
            "the focal loss replaces it; start the class biases at about -4.6 with "
            "class_prediction_bias_init of the box predictor",
            edits if kind == "weighted_sigmoid_focal" else edits + _FOCAL_EDITS,
        )
    elif (
        kind not in (None, "weighted_sigmoid_focal", "custom")
        and not loss.HasField("random_example_sampler")
        and not loss.expected_loss_weights
    ):
        yield Problem(
            "warning",
            f"{path}.classification_loss.{kind}",
            "all anchors have the same weight: the background outweighs the objects",
            "start the class biases at about -4.6 with class_prediction_bias_init",
            _FOCAL_EDITS,
        )


def _check_batch_norm(config: Config) -> Iterator[Problem]:
    kind = config.model.ssd.feature_extractor.type
    if kind.startswith(_SLOW_BACKBONES) and not kind.startswith(_OTHER_BACKBONES):
        yield from unless(
            config,
            f"{SSD}.feature_extractor.override_base_feature_extractor_hyperparams=true",
            "the backbone keeps its own batch norm with decay 0.9997, whose averages follow too "
            "slowly for the few steps of large batches",
            "warning",
            safe=False,
            remedy="conv_hyperparams then apply to the backbone too: state batch_norm in them",
        )
    for path, _, _, value in entries(config.model.ssd, f"{SSD}."):
        if not path.endswith((".conv_hyperparams.batch_norm", ".conv_hyperparams.sync_batch_norm")):
            continue
        nearest = min(max(value.decay, LEAST_DECAY), MOST_DECAY)
        if abs(value.decay - nearest) > _ROUNDING:
            slowly = "slowly for the few steps of large batches"
            yield Problem(
                "warning",
                f"{path}.decay",
                f"is {value.decay:g}: the moving averages would follow too "
                + (slowly if value.decay > nearest else "fast"),
                edits=(f"{path}.decay={nearest}",),
                safe=True,
            )
