import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import RunError
from model_fn.checkpoints import variables
from model_fn.checkpoints.variables import NEUTRAL_STATISTICS
from tests.checkpoints import save


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, {"weights": np.zeros([2, 3]), "mean": [0, 0, 0]}, 200)


def test_check_variables(saved):
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", [2, 3])
        variables.check_variables(saved, {"weights": weights})
        with pytest.raises(RunError, match=r"weigths is missing; did you mean 'weights'"):
            variables.check_variables(saved, {"weigths": weights})
        with pytest.raises(RunError, match=r"mean has shape \[3\], the model needs \[2, 3\]"):
            variables.check_variables(saved, {"mean": weights})
        for name, remedy in (
            ("weights/ExponentialMovingAverage", "Set eval_config.use_moving_averages=false"),
            ("bias", "Use the pipeline.config of the training"),
        ):
            with pytest.raises(RunError, match=f"(?s){name} is missing.*{remedy}"):
                variables.check_variables(saved, {name: weights})
        halves = tf1.get_variable("halves", [2, 3], tf.float16)
        with pytest.raises(RunError, match=r"(?s)weights in .*is float32.*float16.*import"):
            variables.check_variables(saved, {"weights": halves})
        average = "weights" + variables.AVERAGE_SUFFIX
        assert variables.under_own_names({average: [2]}, {average: weights}) == {"weights": [2]}
        many = {f"other_{index}": weights for index in range(30)}
        with pytest.raises(RunError, match="…") as error:
            variables.check_variables(saved, many)
        assert len(str(error.value).splitlines()) < 15


def test_variables_without_a_place_are_reported(saved, caplog):
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", [2, 3])
        variables.check_variables(saved, {"weights": weights})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "contains 1 variables that the model has no place for, and ignores: mean." in (
        record.getMessage()
    )


def test_what_training_alone_needs_is_not_reported(tmp_path, caplog):
    names = ("w", "w/ExponentialMovingAverage")
    ranges = ("w_quant/min", "w_quant/min/biased", "other/biased")
    others = {"w/Momentum": [0, 0], "global_step": 0, NEUTRAL_STATISTICS: 0}
    prefix = save(tmp_path, {**{name: [0, 0] for name in (*names, *ranges)}, **others})
    with tf.Graph().as_default():
        weights = tf1.get_variable("w", [2])
        for name in names:
            variables.check_variables(prefix, {name: weights})
    assert caplog.text.count("2 variables that the model has no place for") == len(names)
    assert "ignores: other/biased, w_quant/min." in caplog.text


def test_scopes_of_a_classifier_and_of_a_detector():
    heads = ["BoxPredictor_0/Class/weights", "Net/a/weights/Momentum"]
    assert variables.network_scopes(["Net/a/weights", "Net/b/weights", *heads]) == {"Net": 2}
    inner = [f"FeatureExtractor/{name}/weights" for name in ("Fpn/x", "Net/a", "Net/b")]
    found = variables.network_scopes(["Net/a/weights", *inner, *heads])
    assert list(found.items()) == [("FeatureExtractor/Net", 2), ("FeatureExtractor/Fpn", 1)]
