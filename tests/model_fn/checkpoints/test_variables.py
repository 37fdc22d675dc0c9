import pytest

from estimator_det.compat import tf, tf1
from estimator_det.protos import model_pb2
from model_fn.checkpoints import variables
from model_fn.checkpoints.errors import RunError
from model_fn.checkpoints.variables import NEUTRAL_STATISTICS


@pytest.fixture
def saved(tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", [2, 3])
        tf1.get_variable("mean", [3], trainable=False)
        session.run(tf1.global_variables_initializer())
        return tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=200)


def test_inference_variables():
    with tf.Graph().as_default():
        tf1.get_variable("weights", [2, 3])
        tf1.get_variable("mean", [3], trainable=False)
        assert set(variables.inference_variables(False)) == {"weights", "mean"}
        assert set(variables.inference_variables(True)) == {
            "weights/ExponentialMovingAverage",
            "mean",
        }


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
    with tf.Graph().as_default(), tf1.Session() as session:
        for end in ("", "/Momentum", "/ExponentialMovingAverage"):
            tf1.get_variable(f"w{end}", [2])
        tf1.train.create_global_step()
        tf1.get_variable(NEUTRAL_STATISTICS, [])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        for name in ("w", "w/ExponentialMovingAverage"):
            variables.check_variables(prefix, {name: tf1.global_variables()[0]})
    assert not caplog.records


def test_a_mismatch_is_explained_by_the_option(tmp_path):
    name = "BoxPredictor_0/%s/biases"
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable(name % "ClassPredictor", [36])
        tf1.get_variable(name % "BoxEncodingPredictor", [12])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    model = model_pb2.DetectionModel()
    model.ssd.num_classes = 2
    with tf.Graph().as_default():
        ours = [
            tf1.get_variable(name % head, [size])
            for head, size in (("ClassPredictor", 9), ("BoxEncodingPredictor", 12))
        ]
        with pytest.raises(RunError, match=r"(?s)has shape \[36\].*--set model.ssd.num_classes=11"):
            variables.check_variables(prefix, {each.op.name: each for each in ours}, model)


def test_one_average_that_is_missing(tmp_path):
    """The others are there: averages were kept, so the configuration is another one."""
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = tf1.get_variable("a/ExponentialMovingAverage", [2])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        wanted = {f"{name}/ExponentialMovingAverage": weights for name in "ab"}
        with pytest.raises(RunError, match=r"(?s)b/Exp.* is missing.*Use the pipeline\.config"):
            variables.check_variables(prefix, wanted)


def test_scopes_of_a_detector_are_those_in_its_extractors_the_largest_first() -> None:
    names = [
        "FirstStageFeatureExtractor/small/w",
        *(f"SecondStageFeatureExtractor/large/{name}" for name in "abc"),
        "FirstStageFeatureExtractor/small/w/Momentum",
        "SecondStageBoxPredictor/w",
        "optimizer/beta1_power",
        "other/w",
    ]
    scopes = variables.network_scopes(names)
    assert list(scopes.items()) == [
        ("SecondStageFeatureExtractor/large", 3),
        ("FirstStageFeatureExtractor/small", 1),
    ]
    text = variables.scopes_text(scopes)
    assert text.startswith("SecondStageFeatureExtractor/large (3 variables), First")


def test_scopes_of_a_classifier_are_its_outermost() -> None:
    names = ["MobilenetV1/a", "MobilenetV1/b/c", "scope/beta2_power", "global_step"]
    assert variables.network_scopes(names) == {"MobilenetV1": 2}
