import pytest

from estimator_det.compat import estimator, removed, tf, versions
from tests.processes import messages, run_python

NEWER = versions.release(tf.__version__) >= versions.WITHOUT_ESTIMATOR


@pytest.mark.skipif(not NEWER, reason="2.15 has all of it")
def test_what_cannot_work_says_so():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(NotImplementedError, match=r"train_distribute.*works on TensorFlow 2\.15"):
        estimator.RunConfig(train_distribute=strategy)
    from tensorflow.python.tpu import tpu_embedding

    with pytest.raises(NotImplementedError, match="TPU embedding"):
        tpu_embedding.AdagradParameters(0.1)


def test_health_of_workers_is_not_watched_silently(caplog):
    module = removed.session_support("somewhere")
    hook = module.GracefulShutdownHook(checkpoint_prefix="x", on_shutdown_hooks=[], saver=None)
    module.ResetComputation()
    with caplog.at_level("WARNING", logger="tensorflow"):
        hook.after_create_session(None, None)
    assert "cannot watch the health of TPU workers" in caplog.text
    for refused in ("ShutdownLameWorkers", "ShutdownAllWorkers", "start_worker_watchdog"):
        with pytest.raises(NotImplementedError, match="TF_TPU_"):
            getattr(module, refused)()


STATE = """
import gc, logging, sys, warnings
frozen = gc.get_freeze_count()
import estimator_det.compat
assert gc.get_freeze_count() == frozen and gc.isenabled()
filters = [each.__module__ for each in logging.getLogger("tensorflow").filters]
assert not any(name.startswith("estimator_det") for name in filters), filters
assert not any("layer" in str(each[1]) for each in warnings.filters)
print("mine", file=sys.stderr)
"""


def test_import_of_the_library_is_quiet_and_changes_nothing_global():
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": ""}
    done = run_python("-W", "error::UserWarning", "-c", STATE, env=environment)
    assert (done.returncode, messages(done)) == (0, ["mine"])
