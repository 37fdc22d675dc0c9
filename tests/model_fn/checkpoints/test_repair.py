from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import tempfile
import time
import types
from typing import Any, Iterator, List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import DamagedCheckpointsError, RunError
from model_fn.checkpoints.repair import DAMAGED_FOLDER, STATE_FILE, find_damage, prepare
from tests import checkpoints


def _save(folder: pathlib.Path, steps: List[int], **settings: Any) -> None:
    """Checkpoints as training writes them."""
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        tf1.get_variable("weights", initializer=tf.range(1000.0))
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(sharded=True, save_relative_paths=True, **settings)
        for number in steps:
            session.run(step.assign(number))
            saver.save(session, str(folder / "model.ckpt"), global_step=number)


def _cut(path: pathlib.Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _data(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / f"model.ckpt-{step}.data-00000-of-00001"


def _state(folder: pathlib.Path) -> List[str]:
    """Names in `checkpoint`, the latest last."""
    state = tf1.train.get_checkpoint_state(str(folder))
    names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    assert names[-1] == os.path.basename(state.model_checkpoint_path)
    return names


def test_nothing_there(tmp_path):
    assert prepare(str(tmp_path / "none")) is None
    assert prepare(str(tmp_path)) is None
    assert os.listdir(tmp_path) == []


def test_sound_folder_is_left_alone(tmp_path, caplog):
    _save(tmp_path, [0, 5, 10])
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with caplog.at_level(logging.INFO, logger="model_fn"):
        assert prepare(str(tmp_path)) == 10
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert not [line for line in caplog.records if line.name.startswith("model_fn")]


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "gone"])
def test_every_damage_is_found(tmp_path, part, damage):
    _save(tmp_path, [3])
    prefix = tmp_path / "model.ckpt-3"
    assert find_damage(str(prefix)) is None
    path = tmp_path / f"{prefix.name}.{part}"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: 0 if damage == "empty" else len(content) - 1])
    found = find_damage(str(prefix))
    assert found is not None and f".{part.split('-')[0]} file" in found


def test_falls_back_and_says_so(tmp_path, caplog):
    _save(tmp_path, [0, 5, 10, 15])
    _cut(_data(tmp_path, 15), 20)
    _cut(tmp_path / "model.ckpt-10.index", 0)
    assert prepare(str(tmp_path)) == 5
    assert "resuming at step 5 from model.ckpt-5, 10 steps lost" in caplog.text
    assert "model.ckpt-15: " in caplog.text and "model.ckpt-10: its .index file" in caplog.text
    assert _state(tmp_path) == ["model.ckpt-0", "model.ckpt-5"]
    assert checkpoints.trained_steps(str(tmp_path)) == 5
    moved = {path.name for path in (tmp_path / DAMAGED_FOLDER).iterdir()}
    assert {_data(tmp_path, 15).name, "model.ckpt-10.index", "model.ckpt-15.meta"} <= moved
    assert not list(tmp_path.glob("model.ckpt-1*"))
    caplog.clear()
    assert prepare(str(tmp_path)) == 5 and not caplog.records


def test_nothing_whole_is_no_new_run(tmp_path):
    _save(tmp_path, [5, 10])
    for step in (5, 10):
        _cut(_data(tmp_path, step), 20)
    files = sorted(os.listdir(tmp_path))
    with pytest.raises(DamagedCheckpointsError, match="no checkpoint there is whole"):
        prepare(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == files
    for step in (5, 10):
        for path in tmp_path.glob(f"model.ckpt-{step}.*"):
            path.unlink()
    with pytest.raises(DamagedCheckpointsError, match=r"model\.ckpt-10: its files are missing"):
        prepare(str(tmp_path))


def test_first_checkpoint_cut_short_loses_nothing(tmp_path):
    _save(tmp_path, [0])
    (tmp_path / STATE_FILE).unlink()
    _cut(tmp_path / "model.ckpt-0.index", 10)
    assert prepare(str(tmp_path)) is None
    assert not list(tmp_path.glob("model.ckpt*"))


@pytest.mark.parametrize("content", [None, b"", b'model_checkpoint_path: "model', bytes(50)])
def test_state_file_is_rebuilt(tmp_path, caplog, content):
    _save(tmp_path, [0, 5, 10, 100])
    path = tmp_path / STATE_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert prepare(str(tmp_path), keep_checkpoint_max=3) == 100
    problem = "is missing" if content is None else "is empty or cut short"
    assert f"checkpoint {problem}: rewritten to name model.ckpt-100" in caplog.text
    assert _state(tmp_path) == ["model.ckpt-5", "model.ckpt-10", "model.ckpt-100"]
    for keep, steps in ((1, [100]), (0, [0, 5, 10, 100])):
        path.unlink()
        assert prepare(str(tmp_path), keep_checkpoint_max=keep) == 100
        assert _state(tmp_path) == [f"model.ckpt-{step}" for step in steps]


def test_state_file_names_deleted_files(tmp_path):
    _save(tmp_path, [0, 5, 10])
    for path in tmp_path.glob("model.ckpt-10.*"):
        path.unlink()
    assert prepare(str(tmp_path)) == 5
    assert _state(tmp_path) == ["model.ckpt-0", "model.ckpt-5"]


def test_killed_before_the_state_file_was_replaced(tmp_path):
    _save(tmp_path, [5, 10])
    old = (tmp_path / STATE_FILE).read_bytes()
    _save(tmp_path, [15])
    (tmp_path / STATE_FILE).write_bytes(old)
    assert prepare(str(tmp_path)) == 10  # the step that was reported as saved
    assert _state(tmp_path) == ["model.ckpt-5", "model.ckpt-10"]


def test_state_file_edited_to_go_back_is_obeyed(tmp_path):
    _save(tmp_path, [5, 10, 15])
    (tmp_path / STATE_FILE).write_text('model_checkpoint_path: "model.ckpt-5"\n')
    later = os.stat(tmp_path / "model.ckpt-15.index").st_mtime + 10
    os.utime(tmp_path / STATE_FILE, (later, later))
    assert prepare(str(tmp_path)) == 5
    assert find_damage(str(tmp_path / "model.ckpt-15")) is None


def test_checkpoint_of_another_folder(tmp_path):
    other, folder = tmp_path / "other", tmp_path / "folder"
    other.mkdir()
    folder.mkdir()
    _save(other, [7])
    text = f'model_checkpoint_path: "{other / "model.ckpt-7"}"\n'
    (folder / STATE_FILE).write_text(text)
    assert prepare(str(folder)) == 7
    assert (folder / STATE_FILE).read_text() == text

    # Absolute paths in a folder that was moved lead nowhere: its own files are meant.
    moved = tmp_path / "moved"
    (other / STATE_FILE).write_text(text)
    other.rename(moved)
    assert prepare(str(moved)) == 7
    assert tf1.train.latest_checkpoint(str(moved)) == str(moved / "model.ckpt-7")


def test_temporary_files_go(tmp_path, caplog):
    _save(tmp_path, [5])
    half = tmp_path / "model.ckpt-10_temp"
    half.mkdir()
    (half / "part-00000-of-00001.data-00000-of-00001.tempstate123").write_bytes(b"half")
    names = [f"{name}.tmp{'a' * 32}" for name in ("checkpoint", "model.ckpt-5.meta", "graph.pbtxt")]
    ours = ("checkpoint", "graph.pbtxt", "data_split.json", "data_position.json", "pipeline.config")
    names += ["model.ckpt-5.index.tempstate99", *(f"{name}.tmp-345" for name in ours)]
    kept = ["my.tmp", "model.ckpt_temp.txt", "notes"]
    for name in names + kept:
        (tmp_path / name).write_text("")
    with caplog.at_level(logging.INFO, logger="model_fn.checkpoints.repair"):
        assert prepare(str(tmp_path)) == 5
    assert "Deleted what an earlier run left unfinished: " in caplog.text
    assert "model.ckpt-10_temp" in caplog.text and names[0] in caplog.text
    left = set(os.listdir(tmp_path))
    assert set(kept) <= left and not left & {*names, half.name}


@contextlib.contextmanager
def _no_rights(folder: pathlib.Path) -> Iterator[None]:
    """Context manager: a user whom permissions bind, who gets into `folder`."""
    if os.geteuid():
        yield
        return
    for path in [folder, *folder.parents]:
        if pathlib.Path(tempfile.gettempdir()) in path.parents:
            path.chmod(0o711 if path != folder else 0o777)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> List[float]:
    """The pauses between attempts, which are not waited for."""
    pauses: List[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.mark.parametrize(
    "name", ["model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index", STATE_FILE]
)
def test_a_file_without_permission_is_no_damage(tmp_path, no_pauses, name):
    _save(tmp_path, [5, 10])
    before = sorted(os.listdir(tmp_path))
    (tmp_path / name).chmod(0)
    with _no_rights(tmp_path), pytest.raises(RunError) as caught:
        prepare(str(tmp_path))
    assert name.split(".data")[0].split(".index")[0] in str(caught.value)
    assert "Permission denied" in str(caught.value) and "permissions" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before and no_pauses
    (tmp_path / name).chmod(0o644)
    assert prepare(str(tmp_path)) == 10


def _fail(patch: pytest.MonkeyPatch, error: BaseException, times: int, at: str) -> None:
    """The reader of checkpoints raises an error when a tensor is read, or before."""
    make = tf1.train.NewCheckpointReader
    left = [times]

    def failing(call: Any) -> Any:
        def called(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                raise error
            return call(*arguments)

        return called

    def reader(prefix: str) -> Any:
        made = make(prefix)
        return types.SimpleNamespace(
            get_variable_to_shape_map=made.get_variable_to_shape_map,
            get_tensor=failing(made.get_tensor),
            has_tensor=made.has_tensor,
        )

    patch.setattr(tf1.train, "NewCheckpointReader", failing(make) if at == "open" else reader)


_TRANSIENT = [
    tf.errors.PermissionDeniedError(None, None, "no rights"),
    tf.errors.UnavailableError(None, None, "HTTP 503"),
    tf.errors.ResourceExhaustedError(None, None, "Too many open files"),
    tf.errors.DeadlineExceededError(None, None, "too slow"),
    MemoryError("std::bad_alloc"),
    OSError(5, "Input/output error"),
]


@pytest.mark.parametrize("at", ["open", "tensor"])
@pytest.mark.parametrize("error", _TRANSIENT, ids=lambda error: type(error).__name__)
def test_an_error_of_reading_is_no_damage(tmp_path, monkeypatch, no_pauses, error, at):
    _save(tmp_path, [5, 10])
    before = sorted(os.listdir(tmp_path))
    with monkeypatch.context() as patch:
        _fail(patch, error, 1000, at)
        with pytest.raises(RunError, match=r"model\.ckpt-10 cannot be read: .* again"):
            prepare(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == before
    _fail(monkeypatch, error, 2, at)
    assert prepare(str(tmp_path)) == 10
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("at", ["open", "tensor"])
def test_an_error_without_a_code_that_happens_once_is_no_damage(tmp_path, monkeypatch, at):
    _save(tmp_path, [5, 10])
    _fail(monkeypatch, RuntimeError("HTTP response code 503"), 1, at)
    assert prepare(str(tmp_path)) == 10
