import pytest

from estimator_det.compat import tf, tf1
from model_fn.checkpoints import variables
from model_fn.checkpoints.errors import RunError


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


def test_one_average_that_is_missing(tmp_path):
    """The others are there: averages were kept, so the configuration is another one."""
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = tf1.get_variable("a/ExponentialMovingAverage", [2])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        wanted = {f"{name}/ExponentialMovingAverage": weights for name in "ab"}
        with pytest.raises(RunError, match=r"(?s)b/Exp.* is missing.*Use the pipeline\.config"):
            variables.check_variables(prefix, wanted)
