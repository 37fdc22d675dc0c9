"""Rules for TPU: fit configurations pass, and breaking any one rule in them is caught."""

from __future__ import annotations

import pathlib
from typing import List, Tuple

import pytest

import estimator_det
from estimator_det.config import overrides, pipeline
from estimator_det.config.paths import without_placeholders
from estimator_det.config.rules import Tpu
from model_fn.checks import tpu_lint
from tests.config.test_check import check
from tests.conftest import MODELS
from tests.processes import run_python

CONFIGS = pathlib.Path(estimator_det.__file__).parent / "configs"
FIT = (
    "ssd_mobilenet_v1_300x300",
    "ssd_mobilenet_v1_ppn_300x300",
    "ssd_mobilenet_v1_fpn_640x640",
    "ssd_resnet50_v1_fpn_640x640",
)
TWO_STAGE = "faster_rcnn_resnet50_640x640"
TARGET = Tpu(model_dir="gs://bucket/run")
INFERENCE = Tpu(inference=True)
SSD, RCNN = "model.ssd", "model.faster_rcnn"

# Lines of severity, an assignment that breaks a rule, and the reported field if it is not the
# assigned one. PREDICTOR stands for the box predictor that the configuration has.
BROKEN = """
error model.ssd.image_resizer={ keep_aspect_ratio_resizer { } }
 -> model.ssd.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension
error model.ssd.image_resizer={ identity_resizer { } } -> model.ssd.image_resizer.identity_resizer
error model.ssd.matcher={ bipartite_matcher { } } -> model.ssd.matcher.bipartite_matcher
error model.ssd.matcher.argmax_matcher.use_matmul_gather=false
error model.ssd.loss.hard_example_miner={}
warning model.ssd.loss.random_example_sampler={}
warning model.ssd.loss.classification_loss={ weighted_softmax { } }
 -> model.ssd.loss.classification_loss.weighted_softmax
error model.ssd.inplace_batchnorm_update=false
warning model.ssd.feature_extractor.conv_hyperparams.batch_norm.decay=0.9997
warning model.ssd.feature_extractor.conv_hyperparams.sync_batch_norm.decay=0.999
warning model.ssd.box_predictor.PREDICTOR.conv_hyperparams.batch_norm.decay=0.9
advice model.ssd.return_raw_detections_during_predict=true
error graph_rewriter={ quantization { } }
error train_config.batch_size=100
error train_config.batch_size=0
advice train_config.batch_size=72
advice train_config.batch_size=16
warning RATE.cosine_decay_learning_rate.warmup_steps=0 -> RATE.cosine_decay_learning_rate
warning RATE={ constant_learning_rate { } } -> RATE.constant_learning_rate
warning RATE={ exponential_decay_learning_rate { } } -> RATE.exponential_decay_learning_rate
warning RATE={ manual_step_learning_rate { schedule { step: 9 } } }
 -> RATE.manual_step_learning_rate
warning RATE={ manual_step_learning_rate { warmup: true } } -> RATE.manual_step_learning_rate
advice train_config.use_bfloat16=false
error train_config.summarize_gradients=true
warning eval_input_reader=[{ tf_record_input_reader { input_path: 'gs://b/e' } }]
 -> eval_input_reader[0].max_number_of_boxes
error train_input_reader.drop_remainder=false
warning train_input_reader.include_source_id=true
warning train_input_reader.load_context_image_ids=true
warning train_input_reader.load_instance_masks=true
warning train_config.retain_original_images=true
warning train_input_reader.num_readers=1
warning train_input_reader.num_prefetch_batches=1
warning train_input_reader.shuffle_buffer_size=9
advice train_input_reader.tf_record_input_reader.input_path=gs://b/train.record
 -> train_input_reader.tf_record_input_reader.input_path[0]
error train_input_reader.tf_record_input_reader.input_path=data/train-*
 -> train_input_reader.tf_record_input_reader.input_path[0]
error train_config.fine_tune_checkpoint=s3://b/model.ckpt
placeholder train_input_reader.label_map_path=PATH_TO_BE_CONFIGURED/map.pbtxt
"""
BROKEN_TWO_STAGE = """
error model.faster_rcnn.use_static_shapes=false
error model.faster_rcnn.use_matmul_crop_and_resize=false
error model.faster_rcnn.use_matmul_gather_in_matcher=false
advice model.faster_rcnn.clip_anchors_to_image=false
error model.faster_rcnn.hard_example_miner={}
error model.faster_rcnn.image_resizer={ keep_aspect_ratio_resizer { } }
 -> model.faster_rcnn.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension
advice model.faster_rcnn.return_raw_detections_during_predict=true
warning train_input_reader.load_instance_masks=true
"""


def _cases(table: str) -> List[Tuple[str, str, str]]:
    table = table.replace("\n ->", " ->")
    cases = []
    for line in table.strip().split("\n"):
        severity, _, text = line.partition(" ")
        assignment, _, field = text.partition(" -> ")
        cases.append((severity, assignment, field or assignment.partition("=")[0]))
    return cases


def _with_bucket(name: str) -> pipeline.Config:
    """A shipped configuration with a bucket in place of the placeholder."""
    text = (CONFIGS / f"{name}.config").read_text().replace("YOUR_BUCKET", "bucket")
    return pipeline.parse_pipeline(text)


@pytest.fixture(params=FIT, scope="module")
def fit(request: pytest.FixtureRequest) -> pipeline.Config:
    return _with_bucket(request.param)


def _findings(config: pipeline.Config, target: Tpu = TARGET) -> List[Tuple[str, str]]:
    return [(problem.severity, problem.field) for problem in tpu_lint.lint(config, target)]


@pytest.mark.parametrize("name", [*FIT, TWO_STAGE])
def test_fit_configurations_pass_clean(name):
    fit = _with_bucket(name)
    assert _findings(fit) == []
    problems = check(fit)
    assert [problem.field for problem in problems] == ["train_config.use_bfloat16"]  # off a TPU


def _check_edits(broken: pipeline.Config, severity: str, field: str) -> None:
    """Asserts that one thing is one finding, that its edits help, and that safe ones are made."""
    (finding,) = tpu_lint.lint(broken, TARGET)
    assert (finding.severity, finding.field) == (severity, field)
    if severity == "placeholder":
        return
    assert finding.edits or (finding.remedy and not finding.safe)
    remaining = tpu_lint.lint(overrides.apply_overrides(broken, finding.edits), TARGET)
    severities = {problem.severity for problem in remaining if problem.field == field}
    if finding.edits:
        # Of a path it can only be shown what it looks like.
        assert severities - {"advice"} == (
            {"placeholder"} if "gs://" in finding.edits[0] else set()
        )
    assert (tpu_lint.fix(broken, TARGET)[0] != broken) == finding.safe


@pytest.mark.parametrize("severity, assignment, field", _cases(BROKEN))
def test_breaking_a_rule_is_caught_and_its_edits_help(fit, severity, assignment, field):
    predictor = fit.model.ssd.box_predictor.WhichOneof("box_predictor_oneof")
    rate = "train_config.optimizer.momentum_optimizer.learning_rate"
    names = [
        text.replace("RATE", rate).replace("PREDICTOR", str(predictor))
        for text in (assignment, field)
    ]
    _check_edits(overrides.apply_overrides(fit, names[:1]), severity, names[1])


@pytest.mark.parametrize("severity, assignment, field", _cases(BROKEN_TWO_STAGE))
def test_breaking_a_rule_of_two_stages_is_caught_and_its_edits_help(severity, assignment, field):
    broken = overrides.apply_overrides(_with_bucket(TWO_STAGE), [assignment])
    _check_edits(broken, severity, field)


def test_a_run_knows_the_rules_of_all_components():
    """In a process that has imported none of them."""
    program = """
from estimator_det.config import pipeline
from model_fn.runs import options, roles
import sys
config = pipeline.parse_pipeline("model { ssd { loss { hard_example_miner { } } } }")
assert "tensorflow" not in sys.modules
roles.check_tpu(config, "gs://bucket/run", options.TpuOptions(rehearses=True))
"""
    assert "model.ssd.loss.hard_example_miner: selects" in run_python("-c", program).stderr


def test_slow_backbones(fit):
    field = f"{SSD}.feature_extractor.override_base_feature_extractor_hyperparams"
    edits = [f"{SSD}.feature_extractor.type=ssd_mobilenet_v2", f"{field}=false"]
    _check_edits(overrides.apply_overrides(fit, edits), "warning", field)


def test_inference_has_rules_of_its_own(fit):
    broken = overrides.apply_overrides(
        fit, ["eval_config.batch_size=1", "eval_input_reader[0].include_source_id=true"]
    )
    assert set(_findings(broken, INFERENCE)) - set(_findings(broken)) >= {
        ("warning", f"{SSD}.post_processing.batch_non_max_suppression.static_kernel"),
        ("error", "eval_config.batch_size"),
        ("warning", "eval_input_reader[0].drop_remainder"),
        ("warning", "eval_input_reader[0].include_source_id"),
    }
    fields = [field for _, field in _findings(_with_bucket(TWO_STAGE), INFERENCE)]
    assert [field for field in fields if field.startswith(RCNN)] == [
        f"{RCNN}.second_stage_post_processing.batch_non_max_suppression.static_kernel",
        f"{RCNN}.use_static_shapes_for_eval",
    ]


def test_model_dir_and_files_of_the_machine():
    fit = _with_bucket(FIT[0])
    assert _findings(fit, Tpu(model_dir="run")) == [("error", "--model_dir")]
    path = "train_input_reader.tf_record_input_reader.input_path"
    local = overrides.apply_overrides(fit, [f"{path}=train-*.record"])
    assert _findings(local, Tpu(model_dir="run", local_files=True)) == []


def test_fewer_cores():
    twelve = overrides.apply_overrides(_with_bucket(FIT[2]), ["train_config.batch_size=12"])
    assert "error" not in dict(_findings(twelve, Tpu(num_shards=4)))
    assert [f.edits for f in tpu_lint.lint(twelve, Tpu()) if f.severity == "error"] == [
        ("train_config.batch_size=16",)
    ]


def test_placeholders_are_told_and_dropped():
    shipped = pipeline.read_pipeline(CONFIGS / f"{FIT[0]}.config")
    assert [severity for severity, _ in _findings(shipped)] == ["placeholder"] * 5
    bare = without_placeholders(shipped)
    assert "YOUR_BUCKET" not in str(bare) and "YOUR_BUCKET" in str(shipped)
    assert not bare.train_input_reader.tf_record_input_reader.input_path
    # Nothing else is gone.
    assert bare.model == shipped.model and bare.eval_config == shipped.eval_config
    bare.train_config.fine_tune_checkpoint = shipped.train_config.fine_tune_checkpoint
    assert bare.train_config == shipped.train_config


def test_without_a_schedule_and_with_the_older_field_of_boxes():
    config = _with_bucket(FIT[0])
    config.train_config.optimizer.momentum_optimizer.ClearField("learning_rate")
    assert _findings(config) == []  # `check` reports it
    config.train_input_reader.ClearField("max_number_of_boxes")
    config.train_config.max_number_of_boxes = 7
    (finding,) = tpu_lint.lint(config, TARGET)
    assert finding.edits == ("train_input_reader.max_number_of_boxes=7",)


# Configurations of the Object Detection API that were made for TPUs or need nothing more for one.
KNOWN_FIT = {
    "ssd_mobilenet_v1_300x300_coco14_sync",
    "ssd_mobilenet_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
    "ssd_mobilenet_v2_mnasfpn_shared_box_predictor_320x320_coco_sync",
    "ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssdlite_mobiledet_cpu_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_dsp_320x320_coco_sync_4x4",
    "ssdlite_mobiledet_edgetpu_320x320_coco_sync_4x4",
    "ssdlite_mobilenet_edgetpu_320x320_coco",
    "ssdlite_mobilenet_v3_large_320x320_coco",
}
UNFIT_SSD = {
    f"{SSD}.matcher.argmax_matcher.use_matmul_gather",
    f"{SSD}.loss.hard_example_miner",
    f"{SSD}.inplace_batchnorm_update",
    "graph_rewriter",
}
UNFIT_TWO_STAGE = {f"{RCNN}.use_static_shapes", f"{RCNN}.use_matmul_crop_and_resize"}


@pytest.mark.slow
def test_configurations_that_people_have():
    fit = set()
    for path in sorted((MODELS / "pipelines").glob("*.config")):
        config = pipeline.read_pipeline(path)
        errors = {f.field for f in tpu_lint.lint(config, Tpu()) if f.severity == "error"}
        if not errors:
            fit.add(path.stem)
        elif config.model.HasField("ssd"):
            assert errors <= UNFIT_SSD, path.stem
        elif not config.model.faster_rcnn.HasField("context_config"):  # made for TPU
            assert errors >= UNFIT_TWO_STAGE, path.stem
    assert fit >= KNOWN_FIT
