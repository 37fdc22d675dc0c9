"""Every field of the schema works, is refused by name, or is reported as without effect.

A field works if the code that reads its message reads the field; `READERS` says which code that is.
A field that no reader reads, and that no table of `config.fields` or registry refuses or reports,
fails `test_every_field_is_accounted_for`.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

import pytest

from estimator_det.config import fields, pipeline
from estimator_det.config.text import ConfigError, is_map, is_repeated
from estimator_det.programs import console, demo
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from model_fn.checks import config_check, names
from tests.messages import ROOT

# Message -> the modules that read its fields. Checks of configurations do not count.
AUGMENT = sorted(
    path.stem for path in (pathlib.Path(ROOT) / "inputs" / "augment").glob("[a-z]*.py")
)
AUGMENTATIONS = tuple(f"inputs/augment/{name}" for name in AUGMENT)
CALIBRATION = ("estimator_det/boxes/score_conversion",)
CLASSIFICATION = ("estimator_det/losses/classification",)
HYPERPARAMS = ("estimator_det/nets/hyperparams",)
LOCALIZATION = ("estimator_det/losses/localization",)
OPTIMIZERS = ("model_fn/training/optimizers",)
RESIZE = ("estimator_det/images/resize",)
SCHEDULES = ("model_fn/training/schedules",)
TWO_STAGE = (
    "estimator_det/nets/context_attention",
    *(
        f"estimator_det/detectors/two_stage/{name}"
        for name in ("faster_rcnn", "masks", "proposals", "regions")
    ),
)
HEADS = ("estimator_det/predictors/ssd", "estimator_det/predictors/base")
READERS: Dict[str, Tuple[str, ...]] = {
    **dict.fromkeys(
        ("AnchorGenerator", "AnchorGrid", "FlexibleGridAnchorGenerator", "GridAnchorGenerator",
         "MultiscaleAnchorGenerator", "SsdAnchorGenerator"),
        ("estimator_det/boxes/anchors",),
    ),
    **dict.fromkeys(
        ("BoxCoder", "FasterRcnnBoxCoder", "KeypointBoxCoder", "MeanStddevBoxCoder",
         "SquareBoxCoder"),
        ("estimator_det/boxes/coders",),
    ),
    **dict.fromkeys(("ArgMaxMatcher", "Matcher"), ("estimator_det/boxes/matching",)),
    **dict.fromkeys(
        ("RegionSimilarityCalculator", "ThresholdedIouSimilarity"),
        ("estimator_det/boxes/geometry",),
    ),
    **dict.fromkeys(
        ("CalibrationConfig", "ClassIdFunctionApproximations", "ClassIdSigmoidCalibrations",
         "FunctionApproximation", "SigmoidCalibration", "SigmoidParameters",
         "TemperatureScalingCalibration", "XYPairs", "XYPairs.XYPair"),
        CALIBRATION,
    ),
    **dict.fromkeys(
        ("BootstrappedSigmoidClassificationLoss", "ClassificationLoss",
         "PenaltyReducedLogisticFocalLoss", "SigmoidFocalClassificationLoss",
         "WeightedDiceClassificationLoss", "WeightedSigmoidClassificationLoss",
         "WeightedSoftmaxClassificationAgainstLogitsLoss", "WeightedSoftmaxClassificationLoss"),
        CLASSIFICATION,
    ),
    **dict.fromkeys(
        ("LocalizationLoss", "WeightedL2LocalizationLoss", "WeightedSmoothL1LocalizationLoss"),
        LOCALIZATION,
    ),
    **dict.fromkeys(
        ("BatchNorm", "Hyperparams", "Initializer", "L1Regularizer", "L2Regularizer",
         "RandomNormalInitializer", "Regularizer", "TruncatedNormalInitializer",
         "VarianceScalingInitializer"),
        HYPERPARAMS,
    ),
    **dict.fromkeys(
        ("ConditionalShapeResizer", "FixedShapeResizer", "ImageResizer", "KeepAspectRatioResizer",
         "PadToMultipleResizer"),
        RESIZE,
    ),
    **dict.fromkeys(
        ("AdamOptimizer", "MomentumOptimizer", "Optimizer", "RMSPropOptimizer"),
        (*OPTIMIZERS, "model_fn/training/train_op"),
    ),
    **dict.fromkeys(
        ("ConstantLearningRate", "CosineDecayLearningRate", "ExponentialDecayLearningRate",
         "LearningRate", "ManualStepLearningRate", "ManualStepLearningRate.LearningRateSchedule"),
        SCHEDULES,
    ),
    **dict.fromkeys(
        ("BoxPredictor", "ConvolutionalBoxPredictor",
         "ConvolutionalBoxPredictor.BoxEncodingsClipRange", "WeightSharedConvolutionalBoxPredictor",
         "WeightSharedConvolutionalBoxPredictor.BoxEncodingsClipRange"),
        HEADS,
    ),
    "BadRecords": ("inputs/bad_records/policy",),
    "BadRecords.Exception": ("inputs/bad_records/policy",),
    "BatchNonMaxSuppression": ("estimator_det/boxes/nms/multiclass",),
    "BipartiteMatcher": ("estimator_det/boxes/matching",),
    "Context": ("estimator_det/nets/context_attention", "estimator_det/config/context"),
    "Custom": ("estimator_det/config/registry",),
    "DetectionModel": (),
    "EvalConfig": (
        "inputs/pipeline",
        "model_fn/evaluation/eval_ops",
        "model_fn/evaluation/metrics/base",
        "model_fn/evaluation/metrics/coco",
        "model_fn/evaluation/metrics/coco_keypoints",
        "model_fn/evaluation/metrics/average_precision_sets",
        "estimator_det/config/derived_models",
        "model_fn/model_fn",
        "model_fn/runs/backends/tpu_estimator",
        "model_fn/runs/context",
        "model_fn/runs/evaluator",
        "model_fn/runs/training_evaluations",
    ),
    "FasterRcnn": (*TWO_STAGE, "estimator_det/predictors/rpn"),
    "FasterRcnnFeatureExtractor": (
        "estimator_det/extractors/two_stage/recipe",
        "estimator_det/extractors/base",
    ),
    "FeaturePyramidNetworks": ("estimator_det/extractors/base",),
    **dict.fromkeys(
        ("GraphRewriter", "Quantization"),
        ("estimator_det/nets/quantization", "estimator_det/config/check"),
    ),
    "HardExampleMiner": ("estimator_det/losses/mining",),
    "InputReader": (
        "inputs/pipeline",
        "inputs/bad_records/policy",
        "inputs/decoding/decoder",
        "inputs/decoding/example",
        "inputs/decoding/hierarchy",
        "inputs/records/stream",
        "inputs/schema",
        "model_fn/runs/evaluator",
    ),
    **dict.fromkeys(
        ("CocoKeypointMetrics", "ParameterizedMetric"),
        ("model_fn/evaluation/metrics/base", "model_fn/evaluation/metrics/coco_keypoints"),
    ),
    "KeypointEdge": ("model_fn/evaluation/eval_ops",),
    "Loss": (
        "estimator_det/detectors/ssd_loss",
        "estimator_det/detectors/loss_weights",
        "estimator_det/detectors/equalization",
    ),
    "Loss.EqualizationLoss": ("estimator_det/detectors/equalization",),
    "MaskRCNNBoxPredictor": (
        "estimator_det/predictors/box_head",
        "estimator_det/predictors/mask_head",
        "estimator_det/config/check_model",
    ),
    "PostProcessing": ("estimator_det/detectors/ssd", *CALIBRATION),
    "PreprocessingStep": AUGMENTATIONS,
    "RandomExampleSampler": ("estimator_det/boxes/sampling",),
    "RfcnBoxPredictor": ("estimator_det/predictors/rfcn",),
    "Ssd": ("estimator_det/detectors/ssd", "estimator_det/detectors/ssd_loss"),
    "SsdFeatureExtractor": ("estimator_det/extractors/ssd/recipe", "estimator_det/extractors/base"),
    "TFRecordInputReader": ("inputs/records/stream",),
    "TrainConfig": (
        "inputs/pipeline",
        "model_fn/checkpoints/savers",
        "model_fn/model_fn",
        "model_fn/training/step",
        "model_fn/training/tpu_step",
        "model_fn/training/train_op",
        "model_fn/training/warm_start",
        "model_fn/runs/backends/parameter_servers",
        "model_fn/runs/runner",
    ),
    "TrainEvalPipelineConfig": ("inputs/pipeline", "model_fn/model_fn"),
}  # fmt: skip
# Calls whose string arguments name fields.
READING_CALLS = {
    "getattr",
    "HasField",
    "register",
    "make_chosen",
    "LabelSpec",
    "_check_move",
    "_check_size",
}
# Fields that a table of their module names.
IN_TABLES = {
    f"InputReader.load_{name}": "inputs/decoding/example"
    for name in ("context_features", "context_image_ids", "multiclass_scores")
}


class Field(NamedTuple):
    """A field of the schema, with the fields that lead to its message."""

    path: Tuple[Any, ...]  # field descriptors from the root
    descriptor: Any

    @property
    def name(self) -> str:
        return fields.schema_name(self.descriptor)


def refused_by_registry(found: Field) -> bool:
    group = found.descriptor.containing_oneof
    holder = found.path[-1].name if found.path else ""
    registry = names.CHOICES_OF_FIELDS.get(holder, names.CHOICES.get(group.name)) if group else None
    return registry is not None and found.descriptor.name not in (*registry, "custom")


def reachable() -> Iterator[Field]:
    """Every field, each message once for a set of choices; refused fields without their parts."""
    seen: Set[Tuple[str, str]] = set()
    todo: List[Tuple[Tuple[Any, ...], Any]] = [
        ((), pipeline_pb2.TrainEvalPipelineConfig.DESCRIPTOR)
    ]
    while todo:
        path, message = todo.pop(0)
        holder = path[-1].name if path else ""
        key = message.full_name, holder if holder in names.CHOICES_OF_FIELDS else ""
        if key in seen:
            continue
        seen.add(key)
        for field in message.fields:
            found = Field(path, field)
            yield found
            inner = field.message_type
            if is_map(field):
                inner = inner.fields_by_name["value"].message_type
            if inner is None or inner.file.package == "google.protobuf":
                continue
            if found.name in fields.REFUSED or refused_by_registry(found):
                continue
            todo.append(((*path, field), inner))


# A choice that one model refuses and another takes is listed as the other has it.
FIELDS = {f.name: f for f in sorted(reachable(), key=refused_by_registry, reverse=True)}
REFUSED = [n for n, f in FIELDS.items() if n in fields.REFUSED or refused_by_registry(f)]
ANNOUNCED = sorted(fields.NO_EFFECT)
WORKING = sorted(set(FIELDS) - set(REFUSED) - set(ANNOUNCED))


def source(module: str) -> str:
    return (pathlib.Path(ROOT) / f"{module}.py").read_text()


@functools.cache
def names_read(module: str) -> Set[str]:
    """Attributes that a module loads, and the texts that it passes to `READING_CALLS`.

    Also the texts that a loop goes through, and the keys of dictionaries.
    """
    found = set()
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if called in READING_CALLS:
                found.update(a.value for a in given if isinstance(a, ast.Constant))
        texts: List[Any] = list(node.keys) if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            texts = node.iter.elts
        found.update(text.value for text in texts if isinstance(text, ast.Constant))
    return found


def modules_of(field: Field) -> Tuple[str, ...]:
    message = field.descriptor.containing_type
    if message.file.name.endswith("/preprocessor.proto"):
        return AUGMENTATIONS
    return READERS.get(field.name.rpartition(".")[0], ())


def test_every_field_is_accounted_for() -> None:
    for name in WORKING:
        field = FIELDS[name]
        group = field.descriptor.containing_oneof
        if group is not None and group.name in names.CHOICES:
            continue  # its registry has an entry
        modules = modules_of(field)
        if name in IN_TABLES:
            assert f'"{field.descriptor.name}"' in source(IN_TABLES[name])
            continue
        assert modules, f"READERS has no module that reads {name.rpartition('.')[0]}"
        assert any(field.descriptor.name in names_read(module) for module in modules), (
            f"{name} is read by none of {modules}: make it work, or enter it in config.fields"
        )


def test_the_tables_name_fields_of_the_schema_once() -> None:
    tables = [fields.REFUSED, fields.NO_EFFECT, fields.REPLACED, fields.NEEDS]
    for table in tables:
        assert list(table) == sorted(table)
        assert set(table) <= set(FIELDS)
    entered = [name for table in tables[:2] for name in table]
    assert len(entered) == len(set(entered))
    for name, needed in fields.NEEDS.items():
        assert f"{name.rpartition('.')[0]}.{needed}" in WORKING
    assert {f.name for f in FIELDS.values() if f.descriptor.GetOptions().deprecated} <= {
        *fields.NO_EFFECT,
        *fields.REPLACED,
    }


def another_value(field: Any) -> Any:
    """A value that is not the default."""
    if field.enum_type is not None:
        return next(n for n in field.enum_type.values_by_number if n != field.default_value)
    if field.type == field.TYPE_BOOL:
        return not field.default_value
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return field.default_value / 2 or 0.5
    return "x" if field.type == field.TYPE_STRING else field.default_value + 1


def with_field(field: Field) -> Tuple[Any, str]:
    """A configuration that sets a field, and the path of the field in it."""
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    message, path = config, ""
    for step in field.path:
        held = getattr(message, step.name)
        path += f"{step.name}."
        if is_map(step):
            message = held[1]
            path = f"{path[:-1]}[1]."
        elif is_repeated(step):
            message = held[0] if held else held.add()
            path = f"{path[:-1]}[0]."
        else:
            held.SetInParent()
            message = held
    descriptor = field.descriptor
    held = getattr(message, descriptor.name)
    if is_map(descriptor):
        held["a"] = "b"
    elif is_repeated(descriptor) and descriptor.message_type is not None:
        held.add()
    elif is_repeated(descriptor):
        held.append(2)
    elif descriptor.message_type is not None:
        held.SetInParent()
    else:
        setattr(message, descriptor.name, another_value(descriptor))
    return config, path + descriptor.name


def problem_of(name: str) -> Any:
    config, path = with_field(FIELDS[name])
    found = config_check.check(config, config_check.NAMES).problems
    (problem,) = (p for p in found if p.field == path)
    return problem


@pytest.mark.parametrize("name", REFUSED)
def test_refused_fields_are_errors(name: str) -> None:
    problem = problem_of(name)
    assert problem.severity == "error"
    assert "not supported" in problem.message and "not known" not in problem.message


@pytest.mark.parametrize("name", ANNOUNCED)
def test_fields_without_effect_are_reported(name: str) -> None:
    problem = problem_of(name)
    assert problem.severity == "warning"
    assert "has no effect" in problem.message and fields.NO_EFFECT[name] in problem.message


@pytest.mark.parametrize("name", sorted(fields.NEEDS))
def test_fields_that_need_another_are_reported_without_it(name: str) -> None:
    needed = FIELDS[f"{name.rpartition('.')[0]}.{fields.NEEDS[name]}"].descriptor
    config, path = with_field(FIELDS[name])

    def messages(value: Any) -> List[str]:
        changed = pipeline.apply_overrides(
            config, [f"{path.rpartition('.')[0]}.{needed.name}={value}"]
        )
        found = config_check.check(changed, config_check.NAMES).problems
        return [problem.message for problem in found if problem.field == path]

    on = "1" if needed.enum_type is None else needed.enum_type.values[1].name
    off = "0" if needed.enum_type is None else needed.enum_type.values[0].name
    if needed.type == needed.TYPE_BOOL:
        on, off = "true", "false"
    missing = f"has no effect: {needed.name} is not set"
    assert messages(off) == [missing]
    assert missing not in messages(on)


def test_training_prints_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    config, path = with_field(FIELDS["TrainConfig.sync_replicas"])
    console.check_config(config, ignore=["train_input_reader", "eval_input_reader"])
    assert f"warning: {path}: has no effect" in capsys.readouterr().err


def test_a_value_that_equals_the_default_is_no_news() -> None:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    config.train_config.sync_replicas = False
    config.train_input_reader.load_track_id = False
    assert not list(fields.check_fields(config))


def test_components_refuse_what_they_do_not_support() -> None:
    reader = input_reader_pb2.InputReader(load_track_id=True)
    with pytest.raises(ConfigError, match=r"reader\.load_track_id is not supported yet"):
        fields.check_supported(reader, "reader")
    fields.check_supported(input_reader_pb2.InputReader(load_track_id=False), "reader")


if __name__ == "__main__":
    print(f"{len(WORKING)} work, {len(REFUSED)} refused, {len(ANNOUNCED)} announced")
