"""Rules for TPU: fit configurations pass, and breaking any one rule in them is caught."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import List, Set, Tuple

import pytest

import estimator_det
from estimator_det.config import overrides, pipeline, tpu_lint
from estimator_det.config.tpu_rules import Target, rule
from tests.config.tpu_cases import (
    BROKEN,
    BROKEN_FOR_INFERENCE,
    BROKEN_TWO_STAGE,
    RCNN,
    READER,
    SSD,
)

CONFIGS = pathlib.Path(estimator_det.__file__).parent / "configs"
FIT = (
    "ssd_mobilenet_v1_300x300",
    "ssd_mobilenet_v1_ppn_300x300",
    "ssd_mobilenet_v1_fpn_640x640",
    "ssd_resnet50_v1_fpn_640x640",
)
TWO_STAGE = "faster_rcnn_resnet50_640x640"
TARGET = Target(model_dir="gs://bucket/run")
INFERENCE = Target(inference=True)


def _filled(name: str) -> pipeline.Config:
    """A shipped configuration with a bucket in place of the placeholder."""
    text = (CONFIGS / f"{name}.config").read_text().replace("YOUR_BUCKET", "bucket")
    return pipeline.parse_pipeline(text)


@pytest.fixture(params=FIT, scope="module")
def fit(request: pytest.FixtureRequest) -> pipeline.Config:
    return _filled(request.param)


def _found(config: pipeline.Config, target: Target = TARGET) -> List[Tuple[str, str, str]]:
    return [(f.rule, f.severity, f.field) for f in tpu_lint.lint(config, target)]


@pytest.mark.parametrize("name", [*FIT, TWO_STAGE])
def test_fit_configurations_pass_clean(name: str) -> None:
    fit = _filled(name)
    assert _found(fit) == []
    found = pipeline.check(fit, check_files=False)
    assert [problem.field for problem in found] == ["train_config.use_bfloat16"]  # off a TPU


def test_an_empty_configuration_is_examined_too() -> None:
    assert ("model-kind", "error", "model") in _found(pipeline.parse_pipeline(""))


@pytest.mark.parametrize("name, severity, assignments, field", BROKEN)
def test_breaking_a_rule_is_caught(
    fit: pipeline.Config, name: str, severity: str, assignments: List[str], field: str
) -> None:
    predictor = fit.model.ssd.box_predictor.WhichOneof("box_predictor_oneof")
    broken = overrides.apply_overrides(
        fit, [text.replace("{predictor}", predictor) for text in assignments]
    )
    found = _found(broken)
    assert (name, severity, field.format(predictor=predictor)) in found
    assert {rule_name for rule_name, _, _ in found} == {name}, "one thing, one finding"


@pytest.mark.parametrize("name, severity, assignments, field", BROKEN_TWO_STAGE)
def test_breaking_a_rule_of_two_stages_is_caught_and_its_edit_helps(
    name: str, severity: str, assignments: List[str], field: str
) -> None:
    broken = overrides.apply_overrides(_filled(TWO_STAGE), assignments)
    assert _found(broken) == [(name, severity, field)]
    (finding,) = tpu_lint.lint(broken, TARGET)
    assert _found(overrides.apply_overrides(broken, finding.edits)) == []


def test_inference_with_two_stages_has_rules_of_its_own() -> None:
    found = [field for name, _, field in _found(_filled(TWO_STAGE), INFERENCE) if "static" in name]
    assert found == [
        f"{RCNN}.use_static_shapes_for_eval",
        f"{RCNN}.second_stage_post_processing.batch_non_max_suppression.static_kernel",
    ]


def test_fix_makes_a_two_stage_model_static_and_leaves_its_loss() -> None:
    switches = ("use_static_shapes", "use_matmul_crop_and_resize", "use_matmul_gather_in_matcher")
    broken = overrides.apply_overrides(
        _filled(TWO_STAGE),
        [
            *(f"{RCNN}.{switch}=false" for switch in (*switches, "clip_anchors_to_image")),
            f"{RCNN}.image_resizer={{ keep_aspect_ratio_resizer {{ }} }}",
        ],
    )
    fixed = tpu_lint.fix(broken, TARGET)
    model = fixed.config.model.faster_rcnn
    assert all(getattr(model, switch) for switch in switches)
    assert model.image_resizer.keep_aspect_ratio_resizer.pad_to_max_dimension
    assert [problem.field for problem in fixed.remaining] == [f"{RCNN}.clip_anchors_to_image"]


@pytest.mark.parametrize("name, severity, assignments, field", BROKEN_FOR_INFERENCE)
def test_inference_has_rules_of_its_own(
    fit: pipeline.Config, name: str, severity: str, assignments: List[str], field: str
) -> None:
    broken = overrides.apply_overrides(fit, assignments)
    assert (name, severity, field) in _found(broken, INFERENCE)
    assert (name, severity, field) not in _found(broken)


def test_every_rule_is_broken_by_a_test() -> None:
    cases = (*BROKEN, *BROKEN_TWO_STAGE, *BROKEN_FOR_INFERENCE)
    broken: Set[str] = {case[0] for case in cases}
    assert broken == set(tpu_lint.RULES)


def test_model_dir_and_files_of_the_machine() -> None:
    fit = _filled(FIT[0])
    assert _found(fit, Target(model_dir="run")) == [("paths", "error", "--model_dir")]
    local = overrides.apply_overrides(
        fit, [f"{READER}.tf_record_input_reader.input_path=train-*.record"]
    )
    assert _found(local, Target(model_dir="run", local_files=True)) == []


def test_fewer_cores() -> None:
    fit = _filled("ssd_mobilenet_v1_fpn_640x640")
    twelve = overrides.apply_overrides(fit, ["train_config.batch_size=12"])
    assert not [f for f in tpu_lint.lint(twelve, Target(num_shards=4)) if f.severity == "error"]
    assert [f.edits for f in tpu_lint.lint(twelve, Target()) if f.severity == "error"] == [
        ("train_config.batch_size=16",)
    ]
    with pytest.raises(ValueError, match="num_shards"):
        Target(num_shards=0)


@pytest.mark.parametrize("name, severity, assignments, field", BROKEN)
def test_edits_mend_what_was_found(
    fit: pipeline.Config, name: str, severity: str, assignments: List[str], field: str
) -> None:
    predictor = fit.model.ssd.box_predictor.WhichOneof("box_predictor_oneof")
    broken = overrides.apply_overrides(
        fit, [text.replace("{predictor}", predictor) for text in assignments]
    )
    (finding,) = [
        found
        for found in tpu_lint.lint(broken, TARGET)
        if (found.rule, found.severity, found.field)
        == (name, severity, field.format(predictor=predictor))
    ]
    if severity == "placeholder":
        return
    if not finding.edits:
        assert finding.remedy and not finding.safe
        return
    mended = overrides.apply_overrides(broken, finding.edits)
    left = tpu_lint.lint(mended, TARGET)
    still = {found.severity for found in left if found.field == finding.field} - {"advice"}
    # Of a path it can only be shown what it looks like.
    assert still == ({"placeholder"} if name == "paths" else set())


def test_fix_makes_the_safe_edits_alone() -> None:
    broken = overrides.apply_overrides(
        _filled(FIT[0]),
        [
            f"{SSD}.inplace_batchnorm_update=false",
            f"{SSD}.matcher.argmax_matcher.use_matmul_gather=false",
            f"{SSD}.loss.hard_example_miner={{}}",
            "train_config.batch_size=1000",
        ],
    )
    fixed = tpu_lint.fix(broken, TARGET)
    assert {finding.rule for finding in fixed.applied} == {
        "in-place-batch-norm",
        "matcher",
    }
    assert {finding.rule for finding in fixed.remaining} == {"hard-example-miner", "batch-size"}
    assert fixed.config.model.ssd.inplace_batchnorm_update
    assert not broken.model.ssd.inplace_batchnorm_update
    text = tpu_lint.diff(broken, fixed.config, "a.config", "b.config")
    assert text.startswith("--- a.config\n+++ b.config\n")
    assert "-    inplace_batchnorm_update: false\n" in text
    assert "+    inplace_batchnorm_update: true\n" in text
    assert tpu_lint.fix(fixed.config, TARGET).applied == []
    assert tpu_lint.diff(broken, broken, "a", "b") == ""


def test_fix_leaves_what_is_learned_to_a_person() -> None:
    unsafe = {"batch-size", "bfloat16", "class-imbalance", "hard-example-miner", "warm-up"}
    fit = _filled(FIT[0])
    for name, _, assignments, _ in BROKEN:
        if name in unsafe:
            broken = overrides.apply_overrides(fit, assignments)
            assert tpu_lint.fix(broken, TARGET).config == broken


def test_placeholders_are_told_and_dropped() -> None:
    shipped = pipeline.read_pipeline(CONFIGS / f"{FIT[0]}.config")
    found = tpu_lint.lint(shipped, TARGET)
    assert {finding.severity for finding in found} == {"placeholder"} and len(found) == 5
    bare = tpu_lint.without_placeholders(shipped)
    assert "YOUR_BUCKET" not in str(bare) and "YOUR_BUCKET" in str(shipped)
    assert not bare.train_input_reader.tf_record_input_reader.input_path
    # Nothing else is gone.
    assert bare.model == shipped.model and bare.eval_config == shipped.eval_config
    bare.train_config.fine_tune_checkpoint = shipped.train_config.fine_tune_checkpoint
    assert bare.train_config == shipped.train_config


def test_heading_of_a_file() -> None:
    assert tpu_lint.heading("# a\n\n  # b\nmodel { }\n# c\n") == "# a\n\n  # b\n"
    assert tpu_lint.heading("model { }") == ""
    assert tpu_lint.heading("# only") == "# only"


def test_rules_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        rule("matcher")(lambda config, target: iter(()))


def test_no_tensorflow() -> None:
    code = "import sys; import estimator_det.config.tpu_lint; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(CONFIGS.parent.parent)},
    )
    assert done.stdout.strip() == "False"


# What the reference's users have, by the fields that a TPU would choke on.
NO_MATMUL = f"{SSD}.matcher.argmax_matcher.use_matmul_gather"
MINER = f"{SSD}.loss.hard_example_miner"
IN_PLACE = f"{SSD}.inplace_batchnorm_update"
UNFIT_SSD = {NO_MATMUL, MINER, IN_PLACE}
QUANTIZED = "graph_rewriter"
UNFIT_TWO_STAGE = {f"{RCNN}.use_static_shapes", f"{RCNN}.use_matmul_crop_and_resize"}
UNFIT = {
    "embedded_ssd_mobilenet_v1_coco": UNFIT_SSD,
    "ssd_inception_v2_coco": UNFIT_SSD,
    "ssd_inception_v2_pets": UNFIT_SSD,
    "ssd_mobilenet_v1_coco": UNFIT_SSD,
    "ssd_mobilenet_v1_pets": UNFIT_SSD,
    "ssd_mobilenet_v2_coco": UNFIT_SSD,
    "ssd_mobilenet_v2_pets_keras": UNFIT_SSD,
    "ssdlite_mobilenet_v1_coco": UNFIT_SSD,
    "ssdlite_mobilenet_v2_coco": UNFIT_SSD,
    "ssd_mobilenet_v1_focal_loss_pets_inference": {NO_MATMUL, IN_PLACE},
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_coco14_sync": {QUANTIZED},
    "ssd_mobilenet_v1_0.75_depth_quantized_300x300_pets_sync": {QUANTIZED},
    "ssd_mobilenet_v2_quantized_300x300_coco": UNFIT_SSD | {QUANTIZED},
}
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


@pytest.mark.slow
def test_configurations_that_people_have(shared: pathlib.Path) -> None:
    seen = set()
    for path in sorted((shared / "data" / "configs").glob("*.config")):
        config = pipeline.read_pipeline(path)
        errors = {f.field for f in tpu_lint.lint(config, Target()) if f.severity == "error"}
        seen.add(path.stem)
        if path.stem in KNOWN_FIT:
            assert errors == set(), path.stem
        elif path.stem in UNFIT:
            assert errors == UNFIT[path.stem], path.stem
        else:
            assert config.model.WhichOneof("model") == "faster_rcnn", path.stem
            if not config.model.faster_rcnn.HasField("context_config"):  # made for TPU
                assert errors >= UNFIT_TWO_STAGE, path.stem
    assert seen >= KNOWN_FIT | set(UNFIT)
