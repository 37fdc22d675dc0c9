import pathlib

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import DamagedCheckpointsError, UsageError
from model_fn.checkpoints import find as checkpoints
from model_fn.checkpoints.repair import require_whole
from tests.checkpoints import save


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, {"weights": [1, 2, 3]}, 200)


def test_find(saved, tmp_path):
    for given in (saved, f"{saved}.index", f"{saved}.meta", str(tmp_path)):
        assert checkpoints.find_checkpoint(given) == saved
    assert checkpoints.find_checkpoint(f"{saved}.data-00000-of-00001") == saved
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/old/place/model.ckpt-200"')
    assert checkpoints.find_checkpoint(str(tmp_path)) == saved  # of a run that was moved


def test_missing_checkpoints_name_the_nearest(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"did you mean 'model\.ckpt-200'"):
        checkpoints.find_checkpoint(str(tmp_path / "model.ckpt-201"))
    with pytest.raises(FileNotFoundError, match="no other one in"):
        checkpoints.find_checkpoint(str(tmp_path / "empty" / "model.ckpt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no checkpoint in the folder"):
        checkpoints.find_checkpoint(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match=r"TensorFlow takes the \[ for a part of a pattern"):
        checkpoints.find_checkpoint("run[1]")


def test_the_older_format_of_one_file_is_found(tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", [2, 3])
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(write_version=tf1.train.SaverDef.V1)
        saved = saver.save(session, str(tmp_path / "inception.ckpt"))
    assert not list(tmp_path.glob("*.index"))
    assert checkpoints.find_checkpoint(saved) == saved
    require_whole(saved)
    cut = pathlib.Path(saved)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(DamagedCheckpointsError, match="the file cannot be read"):
        require_whole(saved)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("frozen_inference_graph.pb", "frozen_inference_graph.pb", "--from frozen_graph "),
        ("model.tflite", "model.tflite", "estimator-det import --from tflite "),
        ("saved_model.pb", "saved_model.pb", "--from saved_model "),
        ("model.json", "", "--from tfjs "),
        ("ssd.tar.gz", "ssd.tar.gz", "it is an archive. Unpack it"),
        ("checkpoint", "checkpoint", "it is the list of checkpoints in"),
    ],
)
def test_published_models_are_named_as_what_they_are(tmp_path, name, given, text):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=text):
        checkpoints.find_checkpoint(str(tmp_path / given).rstrip("/"))


def test_folder_of_checkpoints_may_contain_a_model(saved, tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    assert checkpoints.find_checkpoint(str(tmp_path)) == saved


def test_the_command_that_imports_takes_any_path(tmp_path):
    file = tmp_path / "my models" / "frozen.pb"
    file.parent.mkdir()
    file.write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=f"--from frozen_graph '{file}' "):
        checkpoints.find_checkpoint(str(file))


def test_a_missing_step_is_answered_with_the_newest(tmp_path):
    for name in ("model.ckpt-0", "model.ckpt-90", "model.ckpt-1000", "other.ckpt-999"):
        (tmp_path / f"{name}.index").touch()
    with pytest.raises(FileNotFoundError) as missing:
        checkpoints.find_checkpoint(str(tmp_path / "model.ckpt-999"))
    message = str(missing.value)
    assert "did you mean 'model.ckpt-1000'?" in message
    assert message.endswith("model.ckpt-0, model.ckpt-90, model.ckpt-1000, other.ckpt-999")
    with pytest.raises(FileNotFoundError, match=r"did you mean 'other\.ckpt-999'"):
        checkpoints.find_checkpoint(str(tmp_path / "othr.ckpt-999"))
