"""Every rule reports problems at paths that `--set` takes."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import re
from typing import Any, Iterator, Sequence, Set, Tuple

import estimator_det
import exporters
import inputs
import model_fn
from estimator_det.config import rules
from estimator_det.config.field_rules import rule_of
from estimator_det.config.pipeline import apply_overrides, merge_text
from estimator_det.config.text import is_map, is_repeated
from estimator_det.errors import Problem, UsageError
from estimator_det.protos.pipeline_pb2 import TrainEvalPipelineConfig
from model_fn.checks import config_check  # registers the rules of all components
from tests.config import test_check, test_check_two_stage, test_remedies
from tests.detectors import test_center_net

TPU = rules.Tpu(inference=True)
ROOMS = (estimator_det, inputs, model_fn, exporters)


def fields_found(config: Any) -> Set[str]:
    """Fields of all problems of a configuration; `--set` must accept each."""
    found = {each.field for each in (*rules.check(config), *rules.check_tpu(config, TPU))}
    refused = [field for field in found if not is_taken(config, field)]
    assert config_check and not refused
    return found


def is_taken(config: Any, path: str) -> bool:
    for value in ("null", "1", "{}", "text"):
        with contextlib.suppress(UsageError):
            apply_overrides(config, [f"{path}={value}"])
            return True
    return False


def messages(descriptor: Any, path: Tuple[str, ...], seen: Set[str]) -> Iterator[Tuple[Any, Any]]:
    """(descriptor, path) of the messages of the schema, each once."""
    seen.add(descriptor.full_name)
    yield descriptor, path
    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None and not is_map(field) and inner.full_name not in seen:
            yield from messages(inner, (*path, field.name), seen)


def add(parent: Any, name: str) -> Any:
    """The first message of a field, added if there is none."""
    value = getattr(parent, name)
    if is_repeated(parent.DESCRIPTOR.fields_by_name[name]):
        return value[0] if value else value.add()
    value.SetInParent()
    return value


def wrong_values(field: Any) -> Sequence[Any]:
    """Values of a field, one of which breaks its rule."""
    default = [] if is_repeated(field) else [field.default_value]
    is_number = field.cpp_type not in (field.CPPTYPE_BOOL, field.CPPTYPE_STRING)
    return [*default, *test_remedies.values(field), *([-2] if is_number else [])]


def broken(path: Sequence[str], field: Any) -> Iterator[Any]:
    """Configurations of one field and the messages around it, with values that its rule refuses."""
    for value in [None] if field.message_type else wrong_values(field):
        config = TrainEvalPipelineConfig()
        parent: Any = config
        for name in path:
            parent = add(parent, name)
        with contextlib.suppress(ValueError):  # an unsigned number below 0
            if field.message_type is not None:
                add(parent, field.name)
            elif is_repeated(field):
                getattr(parent, field.name).append(value)
            else:
                setattr(parent, field.name, value)
            yield config


WITH_RULE = [
    (path, field)
    for descriptor, path in messages(TrainEvalPipelineConfig.DESCRIPTOR, (), set())
    for field in descriptor.fields
    if rule_of(field).ListFields() and not is_map(field)
]
# Components that no run supports are refused, and what is in them is not looked at.
REFUSED = re.compile(
    r"model.center_net.(mask_|densepose_|track_|temporal_|deepmac_)"
    r"|.*second_stage_box_predictor.\w*convolutional_box_predictor"
)

# Assignments that break one rule or more; other tests have more of them.
WRONG = """
model.ssd.matcher.argmax_matcher.unmatched_threshold=0.9
POST.calibration_config={}
POST.calibration_config={function_approximation {}}
POST.calibration_config={temperature_scaling_calibration {}}
POST.logit_scale=0
eval_config.parameterized_metric+={}
model={}
graph_rewriter.quantization={}; EXTRACTOR.type=ssd_pnasnet
graph_rewriter.quantization={}; model.faster_rcnn={}
EXTRACTOR.type=ssd_efficientnet-b0_bifpn_keras; EXTRACTOR.bifpn={combine_method: "none"}
EXTRACTOR.type=ssd_spaghettinet; EXTRACTOR.spaghettinet_arch_name=none
EXTRACTOR.num_layers=7
model.ssd.image_resizer.fixed_shape_resizer.height=32
model.faster_rcnn={feature_extractor {type: "faster_rcnn_resnet50" first_stage_features_stride: 3}
 image_resizer {fixed_shape_resizer {height: 9 width: 9}}}
model.ssd.image_resizer.fixed_shape_resizer.convert_to_grayscale=true
 ; train_input_reader.num_additional_channels=1
 ; STEPS=[{rgb_to_gray {}}, {random_pad_image {pad_color: [1, 2]}}]
 ; STEPS+={ssd_random_crop_pad {operations {}}}
model.ssd.image_resizer.conditional_shape_resizer.condition=INVALID
model.ssd.loss.classification_loss.weighted_softmax.logit_scale=0
model.ssd.loss.classification_loss.weighted_logits_softmax.logit_scale=0
HEAD.convolutional_box_predictor.conv_hyperparams.initializer.keras_initializer_by_name=none
HEAD.convolutional_box_predictor.box_encodings_clip_range={min: 1 max: 0}
HEAD.weight_shared_convolutional_box_predictor={num_layers_before_predictor: 1
 depth: 0 box_encodings_clip_range {min: 1 max: 0}}
STEPS=[{random_horizontal_flip {}}]; train_input_reader.num_keypoints=3
STEPS=[{autoaugment_image {policy_name: "none"}}]
train_input_reader.bad_records={exception {kind: "none"}}
METRICS=[coco_mask_metrics]; eval_config.recall_lower_bound=0.9; eval_config.recall_upper_bound=0.1
METRICS=[coco_keypoint_metrics]; eval_config.parameterized_metric+={coco_keypoint_metrics {}}
eval_input_reader[0].name=1; eval_input_reader+={}
train_config.sync_replicas=true; train_config.replicas_to_aggregate=0
model.ssd.matcher.bipartite_matcher={}
train_config.recompute=ON; train_config.batch_size=1024
"""


def wrong_configurations() -> Iterator[Any]:
    table = WRONG.replace("POST", "model.ssd.post_processing").replace(
        "HEAD", "model.ssd.box_predictor"
    )
    table = table.replace("EXTRACTOR", "model.ssd.feature_extractor")
    two_stage = merge_text(test_check.GOOD, test_check.TWO_STAGE)
    for line in test_check.lines(table):
        yield apply_overrides(test_check.GOOD, line.split("; "))
    for line in test_check.lines(test_check.FAULTS):
        yield apply_overrides(test_check.GOOD, line.split(" | ")[1].split("; "))
    yield test_center_net.small_config("feature_extractor.type=hourglass_104")
    yield test_center_net.small_config("feature_extractor.channel_means=[1.0]")
    yield test_center_net.small_config("keypoint_estimation_task+={candidate_ranking_mode: 'none'}")
    for _, assignments, *_ in test_check_two_stage.FAULTS:
        yield apply_overrides(two_stage, assignments)


def check_fields() -> None:
    """Breaks the rule of each field; the field is found."""
    for path, field in WITH_RULE:
        name, rule = ".".join([*path, field.name]), rule_of(field)
        found = set().union(*map(fields_found, broken(path, field)))
        is_named = any(each.rpartition(".")[2].startswith(field.name) for each in found)
        # Whole numbers from 0 that are stored without a sign have no wrong value.
        is_open = field.cpp_type == field.CPPTYPE_UINT32 and rule.largest == 2**32 - 1
        assert is_named or (is_open and not rule.least) or REFUSED.match(name), name


def test_every_rule_finds_something_at_a_path(monkeypatch):
    silent = set()

    def watched(rule: Any, name: str) -> Any:
        silent.add(name)

        def apply(*arguments: Any) -> Iterator[Problem]:
            for problem in rule(*arguments):
                silent.discard(name)
                yield problem

        return apply

    for (target, message), functions in rules._RULES.items():
        names = [f"{target} {each.__module__}.{each.__name__} {message}" for each in functions]
        watchers = [watched(*pair) for pair in zip(functions, names)]
        monkeypatch.setitem(rules._RULES, (target, message), watchers)
    assert len(WITH_RULE) > 400 and len(silent) > 80
    check_fields()
    for config in wrong_configurations():
        fields_found(config)
    assert not silent


def test_paths_of_errors_in_graphs_and_runs_are_taken():
    pattern = re.compile(r'(?:\.at|\berror)\(\s*"((?:model|train_|eval_|graph_)[\w.\[\]]*)"')
    sources = (pathlib.Path(str(room.__file__)).parent.rglob("*.py") for room in ROOMS)
    paths = {
        path for file in itertools.chain(*sources) for path in pattern.findall(file.read_text())
    }
    assert len(paths) > 10
    assert [path for path in paths if not is_taken(test_check.GOOD, path)] == []
