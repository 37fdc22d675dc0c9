"""Metrics are made before step 1, so that their names and mistakes are known."""

from __future__ import annotations

import pathlib
import types
from typing import List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import Problem, UsageError
from model_fn.checks import config_check
from model_fn.checks.graphs import check_metrics, placeholders
from model_fn.checks.metric_names import check_best_metric, lower_is_better, metric_names
from model_fn.checks.subject import read_subject
from model_fn.evaluation.diagnostics import EVAL_DIAGNOSTICS
from model_fn.evaluation.metrics.base import METRICS, PARAMETERIZED, MetricsSet
from model_fn.model_fn import ModeKeys, create_model_fn
from model_fn.runs import runner
from model_fn.runs.options import EvaluationOptions
from tests.model_fn.checks.small import small_config

MAP = "DetectionBoxes_Precision/mAP"
PER_CLASS = "DetectionBoxes_PerformanceByCategory/mAP"
LVIS = "eval_config.metrics_set=lvis_box_metrics"
EVERY = "eval_config.include_metrics_per_category=true"


@pytest.fixture
def label_map(tmp_path: pathlib.Path) -> str:
    """The assignment of a label map with two classes."""
    path = tmp_path / "map.pbtxt"
    path.write_text(
        "item { id: 1 name: '/m/cat' frequency: RARE keypoints { id: 1 label: 'nose' } }"
        "item { id: 2 name: 'dog' }"
    )
    return f"eval_input_reader[0].label_map_path={path}"


def test_misspelled_best_metrics_name_the_nearest(label_map):
    config = small_config(label_map, EVERY)
    for good in (None, MAP, "loss", "Loss/total_loss", "Loss/localization_loss"):
        check_best_metric(config, good)
    for wrong, nearest in (
        ("DetectionBoxes_Precision/mAp", MAP),
        ("Loss/total_los", "Loss/total_loss"),
        (f"{PER_CLASS}/dogs", f"{PER_CLASS}/dog"),
    ):
        with pytest.raises(UsageError) as error:
            check_best_metric(config, wrong)
        text = str(error.value)
        assert text.startswith(
            f"best_metric: {wrong!r} is not evaluated; did you mean {nearest!r}?"
        )
        assert f"Known: {MAP}, " in text and "and 2 more" in text


@pytest.mark.parametrize(
    "choice",
    [
        "eval_config.metrics_set=[coco_detection_metrics,errors_metrics]",
        "eval_config.parameterized_metric=[{ custom { name: 'errors_metrics' } }]",
    ],
)
def test_the_lowest_value_is_best_where_a_set_says_so(choice, tmp_path, monkeypatch, caplog):
    members = dict.fromkeys(("needs", "num_keypoints", "add", "results"), ())
    errors = types.SimpleNamespace(names=["Errors/mean", "Errors/gloss"], **members)
    entry = MetricsSet(lambda *_: errors, frozenset(), False, frozenset(["Errors/mean"]))
    monkeypatch.setitem(METRICS._makers, "errors_metrics", entry)
    monkeypatch.setitem(PARAMETERIZED._customs._makers, "errors_metrics", entry.make)
    path = tmp_path / "map.pbtxt"
    path.write_text("item { id: 1 name: 'blossom' }")
    config = small_config(f"eval_input_reader[0].label_map_path={path}", EVERY, choice)
    assert f"{PER_CLASS}/blossom" in metric_names(config)
    lower = [name for name in metric_names(config) if lower_is_better(config, name)]
    assert lower[0] == "Errors/mean" and {"loss", "Loss/localization_loss"} < set(lower)
    assert all(name.lower().startswith("loss") for name in lower[1:])
    check_best_metric(config, "Errors/mean")
    assert not caplog.records
    errors.names = ["Errors/means"]
    check_best_metric(config, "Errors/means")
    assert "has 'Errors/mean', which is not evaluated; did you mean 'Errors/means'?" in caplog.text
    errors.names = [f"{PER_CLASS}/blossom"]
    with pytest.raises(UsageError, match="blossom' is given twice, here and by eval_config"):
        metric_names(config)
    errors.names, errors.needs = ["Errors/mean"], {"maks"}
    with pytest.raises(UsageError, match=r"'errors_metrics': needs has 'maks'.*mean 'masks'"):
        metric_names(config)
    del errors.names, errors.add
    with pytest.raises(UsageError, match=r"eval_config.*'errors_metrics': .* no names and no add"):
        metric_names(config)


@pytest.mark.usefixtures("small_network")
def test_a_run_is_refused_before_its_folder_exists(label_map, tmp_path):
    folder = tmp_path / "run"
    paths = [
        f"{reader}.tf_record_input_reader.input_path=x"
        for reader in ("train_input_reader", "eval_input_reader[0]")
    ]
    config = small_config(label_map, "train_input_reader.label_map_path=x", *paths)
    with pytest.raises(UsageError, match=r"^best_metric: 'mAP' is not evaluated"):
        runner.train_and_evaluate(
            config, str(folder), evaluation=EvaluationOptions(best_metric="mAP"), progress=False
        )
    assert not folder.exists()


@pytest.mark.usefixtures("small_network")
def test_the_names_are_those_of_an_evaluation(label_map):
    config = small_config(label_map)
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        features, labels = placeholders(config, ModeKeys.EVAL)
        spec = create_model_fn(config)(features, labels, ModeKeys.EVAL)
    found = {name for name in spec.eval_metric_ops if not name.startswith(EVAL_DIAGNOSTICS)}
    pictures = {name for name in found if "Detections_Left_Groundtruth_Right" in name}
    # The Estimator adds these two.
    missing = {"loss", "global_step"} | {"Loss/equalization_loss"}
    assert set(metric_names(config)) - found <= missing
    assert found - pictures <= set(metric_names(config))


def test_sets_that_the_label_map_does_not_fit(label_map):
    def problems(*changes: str) -> List[Problem]:
        found = config_check.check(small_config(label_map, *changes)).problems
        fields = ("eval_config.metrics_set", "eval_config.parameterized_metric")
        return [problem for problem in found if problem.field.startswith(fields)]

    assert problems() == []
    (problem,) = problems(LVIS)
    assert problem.field == "eval_config.metrics_set"
    assert problem.message.endswith("'dog' has none")
    assert problem.remedy == "Add frequency: RARE, COMMON or FREQUENT to each item"
    points = "eval_config.parameterized_metric=[{coco_keypoint_metrics {class_label: 'dog'}}]"
    field = "eval_config.parameterized_metric[0].coco_keypoint_metrics.class_label"
    assert any("has no keypoints" in p.message for p in problems(points) if p.field == field)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ("eval_input_reader[0].label_map_path=", ["eval_config.metrics_set"]),
        ("eval_input_reader[0].label_map_path=gone.pbtxt", []),
        ("eval_input_reader=[]", []),
    ],
)
def test_sets_whose_label_map_cannot_be_read_are_left_to_other_checks(change, fields):
    problems = check_metrics(read_subject(small_config(LVIS, change)))
    assert [problem.field for problem in problems] == fields
