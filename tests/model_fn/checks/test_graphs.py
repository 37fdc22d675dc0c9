import numpy as np
import pytest

from inputs.label_map import parse_label_map
from model_fn.checks import graphs
from tests import checkpoints
from tests.model_fn.checks.small import small_config

pytestmark = pytest.mark.usefixtures("small_network")


def test_what_cannot_be_built_is_reported_once():
    examined = graphs.examine(small_config("train_config.freeze_variables=."))
    (problem,) = examined.problems
    assert (problem.severity, problem.field) == ("error", "train_config.freeze_variables")
    assert "leave no variable to train" in problem.message
    assert examined.memory is None and examined.num_operations == 0


@pytest.fixture
def builds_only(monkeypatch):
    """A function that spares a test the graphs of other modes than one."""
    real = graphs.ModelFn

    def use(only):
        def make(config, **_):
            build = real(config)
            return lambda features, labels, mode: mode == only and build(features, labels, mode)

        monkeypatch.setattr(graphs, "ModelFn", make)

    return use


def test_the_graph_of_evaluation_is_built(builds_only):
    builds_only("eval")
    config = small_config("eval_config.super_categories[round]=disc")
    label_map = parse_label_map("item { id: 1 name: 'circle' }", "map.pbtxt")
    (problem,) = graphs.examine(config, label_map).problems
    assert problem.field == "eval_config.super_categories[round]"
    assert "['disc'] are not in the label map" in problem.message


def test_warm_start_is_told_and_checked(tmp_path, builds_only):
    builds_only("train")
    name = "FeatureExtractor/First/weights"
    saved = checkpoints.save(tmp_path, {name: np.zeros([5, 5, 3, 16])})
    kind = "train_config.fine_tune_checkpoint_type=detection"
    from_it = [f"train_config.fine_tune_checkpoint={saved}", kind]
    examined = graphs.examine(small_config(*from_it))
    assert list(examined.warm_start.restored) == [name]
    assert [problem.severity for problem in examined.problems] == ["warning"]
    assert " 9 missing;" in examined.problems[0].message
    # Of the model's variables alone: the graph has slots besides.
    everything = graphs.examine(
        small_config(*from_it, "train_config.load_all_detection_checkpoint_vars=true")
    )
    asked = [*everything.warm_start.restored, *everything.warm_start.missing]
    assert name in asked and not [each for each in asked if "Adam" in each]
    assert everything.num_variables > len(asked) > everything.warm_start.backbone
    for assignments, message in (
        ([*from_it, "train_config.min_restored_share=0.5"], "less than"),
        ([from_it[0], "train_config.fine_tune_checkpoint_type=classification"], "no variable"),
    ):
        examined = graphs.examine(small_config(*assignments))
        (problem,) = examined.problems
        assert problem.severity == "error" and message in problem.message
        assert examined.warm_start is None
