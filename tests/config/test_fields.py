"""Every field of the schema works, is refused by name, or is reported as without effect.

`fields_read` records each read of a field while detectors, optimizers and augmentations are built
from configurations that set it, and while a small run trains and evaluates. A field that nothing
reads, and that no rule in a .proto file or registry refuses or reports, fails
`test_every_field_is_read`.
"""

from __future__ import annotations

import contextlib
import copy
import pathlib
import sys
from typing import Any, Iterator, List, NamedTuple, Set, Tuple

import pytest
from google.protobuf import message_factory, text_format

import inputs
from benchmarks.speed import components
from estimator_det.compat import tf
from estimator_det.config import facts, pipeline, rules
from estimator_det.config.field_rules import rule_of
from estimator_det.config.registry import CHOOSERS, Registry
from estimator_det.config.text import is_map, is_repeated
from estimator_det.detectors import base as detectors
from estimator_det.detectors import make_detector
from estimator_det.errors import ConfigError
from estimator_det.programs import console, demo
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs import augment
from inputs.datasets import shapes
from inputs.sample import Sample
from model_fn.checks import config_check
from model_fn.evaluation.metrics import base as metrics
from model_fn.runs import runner
from model_fn.training import optimizers, train_op
from tests import small_extractor
from tests.conftest import ROOT
from tests.detectors import configs as single_shot
from tests.detectors import keypoint_configs, test_center_net
from tests.detectors.two_stage import configs as two_stage

CONFIG = pipeline_pb2.TrainEvalPipelineConfig
PRODUCT = tuple(f"{ROOT / room}/" for room in ("estimator_det", "inputs", "model_fn"))
CHECKS_OF_ALL_FIELDS = ("is_set_to_non_default", "check_use", "_check_numbers")
# Fields that clusters, TPUs and `estimator-det evaluate` alone read, and some that rules compare
# with others.
ELSEWHERE = {
    "EvalConfig.tiles",
    "Tiles.overlap",
    "Tiles.side",
    *(f"TrainConfig.{name}" for name in (*train_op.FOR_CLUSTER, "use_bfloat16")),
    "EvalConfig.num_examples",
    "MaskRCNNBoxPredictor.box_code_size",
    "MaskRCNNBoxPredictor.predict_instance_masks",
    "RfcnBoxPredictor.box_code_size",
}
# Field -> assignment to another one, without which it has no effect, beside those that rules name.
NEEDED = {
    "Context.max_num_context_features": "use_long_term_attention=true",
    "Custom.parameters": "name=x",
    "FasterRcnn.use_static_shapes_for_eval": "use_static_shapes=true",
    "InputReader.frame_index": "input_type=TF_SEQUENCE_EXAMPLE",
    "MaskRCNNBoxPredictor.dropout_keep_probability": "use_dropout=true",
}
AUGMENTATIONS = {
    **components.SETTINGS,
    "random_pad_image": "min_image_height: 60 min_image_width: 70 max_image_height: 60 "
    "max_image_width: 70",
}


class Field(NamedTuple):
    """A field of the schema, with the fields that lead to its message."""

    path: Tuple[Any, ...]  # field descriptors from the root
    descriptor: Any

    @property
    def name(self) -> str:
        return local_name(self.descriptor)

    def is_below(self, *path: str) -> bool:
        return tuple(step.name for step in self.path[: len(path)]) == path


def local_name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("estimator_det.protos.")


def inner_message(field: Any) -> Any:
    """Descriptor of the messages in a field, the values of a map included; None for others."""
    if is_map(field):
        return field.message_type.fields_by_name["value"].message_type
    return field.message_type


def refused_by_registry(found: Field) -> bool:
    group = found.descriptor.containing_oneof
    if group is None:
        return False
    holder = CHOOSERS.get(local_name(found.path[-1])) if found.path else None
    registry = holder or CHOOSERS.get(local_name(group))
    return registry is not None and found.descriptor.name not in (*registry, "custom")


def is_refused(found: Field) -> bool:
    return bool(rule_of(found.descriptor).refused) or refused_by_registry(found)


def reachable() -> Iterator[Field]:
    """Every field, each message once for a set of choices; refused fields without their parts."""
    seen: Set[Tuple[str, str]] = set()
    todo: List[Tuple[Tuple[Any, ...], Any]] = [((), CONFIG.DESCRIPTOR)]
    while todo:
        path, message = todo.pop(0)
        holder = local_name(path[-1]) if path else ""
        key = message.full_name, holder if holder in CHOOSERS else ""
        if key in seen:
            continue
        seen.add(key)
        for field in message.fields:
            found = Field(path, field)
            yield found
            inner = inner_message(field)
            if inner is None or inner.file.package == "google.protobuf":
                continue
            if not is_refused(found):
                todo.append(((*path, field), inner))


# A choice that one model refuses and another takes is listed as the other has it.
FIELDS = {f.name: f for f in sorted(reachable(), key=refused_by_registry, reverse=True)}
RULES = {name: rule_of(field.descriptor) for name, field in FIELDS.items()}
REFUSED = [name for name, field in FIELDS.items() if is_refused(field)]
NO_EFFECT = sorted(name for name, rule in RULES.items() if rule.no_effect)
NEEDS = {name: rule.needs for name, rule in sorted(RULES.items()) if rule.needs}
NEEDED.update({name: f"{other}=1" for name, other in NEEDS.items() if name not in NEEDED})
WORKING = sorted(set(FIELDS) - set(REFUSED) - set(NO_EFFECT))


def another_value(field: Any) -> Any:
    """A value that is not the default."""
    if field.enum_type is not None:
        return next(n for n in field.enum_type.values_by_number if n != field.default_value)
    if field.type == field.TYPE_BOOL:
        return not field.default_value
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return field.default_value / 2 or 0.5
    return "x" if field.type == field.TYPE_STRING else field.default_value + 1


def set_field(config: Any, field: Field) -> str:
    """Sets a field of a configuration, and the messages around it; returns its path."""
    message, path = config, ""
    for step in (*field.path, field.descriptor):
        held = getattr(message, step.name)
        path += f".{step.name}"
        is_last = step is field.descriptor
        if is_map(step):
            key, value = step.message_type.fields
            if value.message_type is None:
                held[another_value(key)] = another_value(value)
            else:
                message = held[another_value(key)]
                path += "" if is_last else f"[{another_value(key)}]"
        elif is_repeated(step) and step.message_type is not None:
            message = held[0] if held else held.add()
            path += "" if is_last else "[0]"
        elif is_repeated(step):
            held.extend(["x" if step.type == step.TYPE_STRING else 2] * 2)
        elif step.message_type is not None:
            held.SetInParent()
            message = held
        else:
            setattr(message, step.name, another_value(step))
    return path[1:]


@contextlib.contextmanager
def recorded_reads() -> Iterator[Set[str]]:
    """Context manager: collects the fields that parts of the product read, without its checks."""
    reads: Set[str] = set()
    read = CONFIG.__getattribute__

    def record(message: Any, attribute: str) -> Any:
        code = sys._getframe(1).f_code
        value = read(message, attribute)
        if not code.co_filename.startswith(PRODUCT) or code.co_name in CHECKS_OF_ALL_FIELDS:
            return value
        message_name = local_name(type(message).DESCRIPTOR)

        def ask(name: str) -> Any:
            answer = value(name)
            reads.add(f"{message_name}.{name if attribute == 'HasField' else answer}")
            return answer

        if attribute in ("HasField", "WhichOneof"):
            return ask
        reads.add(f"{message_name}.{attribute}")
        return value

    messages = {field.descriptor.containing_type for field in FIELDS.values()}
    with pytest.MonkeyPatch.context() as patch:
        for message_class in map(message_factory.GetMessageClass, messages):
            patch.setattr(message_class, "__getattribute__", record)
        yield reads


MODELS = (
    single_shot.small_config(),
    single_shot.small_config(
        """anchor_generator { flexible_grid_anchor_generator {
        anchor_grid { base_sizes: 8 aspect_ratios: 1 height_stride: 4 width_stride: 4 } } }"""
    ),
    two_stage.small_config(two_stage.MASKS),
    two_stage.small_config(two_stage.RFCN),
    two_stage.small_config("feature_extractor { type: 'faster_rcnn_mobilenet_v1' }"),
    keypoint_configs.small_config(),
    test_center_net.small_config().model,
)
KEYPOINTS = {"id": 1, "name": "x", "keypoints": [{"id": 0, "name": "a"}]}


def build_part(config: Any, field: Field) -> None:
    """Builds the part of a run that a field belongs to."""
    if field.is_below("model"):
        make_detector(config.model, is_training=False)
        make_detector(config.model, is_training=True)
        facts.context_shape(config.model)
    elif field.is_below("train_config", "optimizer"):
        optimizer = config.train_config.optimizer
        rate = getattr(optimizer, optimizer.WhichOneof("optimizer")).learning_rate
        if rate.WhichOneof("learning_rate") is None:
            rate.constant_learning_rate.SetInParent()
        optimizers.make_optimizer(optimizer, tf.constant(1))
    elif field.is_below("train_config", "data_augmentation_options"):
        augment.make_steps(config.train_config.data_augmentation_options)
    elif field.is_below("train_input_reader"):
        inputs.create_train_input_fn(config, make_detector(config.model, True).preprocess)()
    elif field.is_below("eval_config"):
        for name in ("coco_detection_metrics", "precision_at_recall_detection_metrics"):
            config.eval_config.metrics_set[:] = [name]
            metrics.make_metrics(config.eval_config, [KEYPOINTS])


def run_augmentations() -> None:
    values = components._sample_values(48, 64, masks=True, scores=True)
    with tf.Graph().as_default():
        sample = Sample(**{field: tf.constant(value) for field, value in values.items()})
        for name in augment.AUGMENTATIONS:
            message = preprocessor_pb2.PreprocessingStep()
            text_format.Parse(f"{name} {{ {AUGMENTATIONS.get(name, '')} }}", message)
            operations = getattr(message, name).DESCRIPTOR.fields_by_name.get("operations")
            for field in operations.message_type.fields if operations else ():
                set_field(getattr(message, name), Field((operations,), field))
            (step,) = augment.make_steps([message])
            samples = [sample] * step.num_records
            seed = tf.constant([1, 7], tf.int64)
            step.function(samples if len(samples) > 1 else sample, seed, step.config)


def train_and_evaluate(config: Any, folder: pathlib.Path) -> None:
    """Trains with mixtures and simulated quantization, evaluates, and fine-tunes the result."""
    changes = """
        graph_rewriter { quantization {} }
        train_config {
          data_augmentation_options { mixup { stop_at_step: 9 } }
          data_augmentation_options { mosaic { stop_at_step: 9 } }
          data_augmentation_options { copy_paste { stop_at_step: 9 } }
        }
        train_input_reader {
          load_instance_masks: true mask_type: PNG_MASKS
          bad_records { exception { kind: "box_nan" policy: SKIP } }
        }
        eval_config { keypoint_edge { start: 0 end: 1 } }
    """
    config = pipeline.merge_text(config, changes)
    runner.train_and_evaluate(config, str(folder / "first"))
    config.train_config.ClearField("data_augmentation_options")
    config.train_config.fine_tune_checkpoint = str(folder / "first" / "model.ckpt-2")
    config.train_config.fine_tune_checkpoint_type = ""
    config.train_config.from_detection_checkpoint = True
    config.train_input_reader.ClearField("max_number_of_boxes")
    config.train_config.max_number_of_boxes = 20
    runner.train(config, str(folder / "second"))


@pytest.fixture(scope="module")
def fields_read(tmp_path_factory: pytest.TempPathFactory) -> Set[str]:
    """Fields that are read while every part is built and a small run trains and evaluates."""
    folder = tmp_path_factory.mktemp("run")
    files = shapes.make_dataset(str(folder / "data"), seed=0, size="tiny")
    run = demo.demo_config(files, num_train_steps=2)
    with recorded_reads() as reads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment.AUGMENTATIONS, "_customs", Registry("x"))
        augment.AUGMENTATIONS.custom("x")(lambda sample, seed: sample)
        run_augmentations()
        with pytest.MonkeyPatch.context() as small:
            small_extractor.use(small, 4, 16)
            train_and_evaluate(run, folder)
        # A box coder is built beside the box predictor of another one.
        patch.setattr(detectors, "require", lambda *_: None)
        for field in map(FIELDS.__getitem__, WORKING):
            if field.name in reads:
                continue
            for model in MODELS if field.is_below("model") else MODELS[:1]:
                config = copy.deepcopy(run)
                config.model.CopyFrom(model)
                message, _, _ = set_field(config, field).rpartition(".")
                if field.name in NEEDED:
                    config = pipeline.apply_overrides(config, [f"{message}.{NEEDED[field.name]}"])
                with (
                    tf.Graph().as_default(),
                    contextlib.suppress(ConfigError, OSError, ValueError, LookupError),
                ):
                    build_part(config, field)
    return reads


@pytest.mark.slow
def test_every_field_is_read(fields_read):
    unread = set(WORKING) - fields_read - ELSEWHERE
    assert not unread, "make them work, or give them a rule in their .proto file"


def test_a_path_is_no_configuration():
    with pytest.raises(TypeError, match="is a str; give what read_pipeline returns"):
        rules.require("my.config")


def test_the_rules_fit_each_other():
    for name, rule in RULES.items():
        reports = [rule.refused, rule.no_effect, rule.replaced_by, rule.needs]
        assert len(list(filter(None, reports))) <= 1, name
        assert rule.refused or not rule.remedy, name
    for name, needed in NEEDS.items():
        assert f"{name.rpartition('.')[0]}.{needed}" in WORKING
    deprecated = {n: rule for n, rule in RULES.items() if options_of(n).deprecated}
    assert all(rule.no_effect or rule.replaced_by for rule in deprecated.values())


def options_of(name: str) -> Any:
    return FIELDS[name].descriptor.GetOptions()


def problems_at(field: Field, assignment: str = "") -> List[Tuple[str, str]]:
    """Severity and message of each problem of a field in a configuration that sets it."""
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    path = set_field(config, field)
    if assignment:
        config = pipeline.apply_overrides(config, [f"{path.rpartition('.')[0]}.{assignment}"])
    found = config_check.check(config, config_check.NAMES).problems
    return [(problem.severity, problem.message) for problem in found if problem.field == path]


@pytest.mark.parametrize("name", [*REFUSED, *NO_EFFECT])
def test_fields_that_no_run_uses_are_reported(name):
    ((severity, message),) = problems_at(FIELDS[name])
    if name in REFUSED:
        assert severity == "error" and "not supported" in message and "not known" not in message
    else:
        assert severity == "warning" and f"has no effect: {RULES[name].no_effect}" in message


@pytest.mark.parametrize("name", NEEDS)
def test_fields_that_need_another_are_reported_without_it(name):
    missing = ("warning", f"has no effect: {NEEDS[name]} is not set")
    assert problems_at(FIELDS[name], f"{NEEDS[name]}=0") == [missing]
    assert missing not in problems_at(FIELDS[name], f"{NEEDS[name]}=1")


def test_training_prints_what_has_no_effect(capsys):
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    config.train_config.sync_replicas = True
    console.check_config(config, ignore=["train_input_reader", "eval_input_reader"])
    assert "warning: train_config.sync_replicas: has no effect" in capsys.readouterr().err


def test_a_value_that_equals_the_default_is_not_reported():
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    config.train_config.sync_replicas = False
    config.train_input_reader.load_track_id = False
    assert not [p for p in rules.check(config) if "effect" in p.message]


def test_an_input_refuses_what_no_run_supports():
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    config.train_input_reader.load_track_id = True
    refusal = r"train_input_reader\.load_track_id:? is not supported yet"
    with pytest.raises(ConfigError, match=refusal):
        inputs.create_train_input_fn(config, lambda images: images)
