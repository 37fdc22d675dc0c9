import os
import re
import resource
import threading
from typing import List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import FolderNotWritableError
from model_fn.checkpoints import writing


def test_check_folder(tmp_path):
    writing.check_folder(str(tmp_path / "new" / "folder"), "model_dir")
    assert os.listdir(tmp_path / "new" / "folder") == []
    umask = os.umask(0o002)
    try:
        writing.check_folder(str(tmp_path / "shared"), "model_dir")
    finally:
        os.umask(umask)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o775


def test_free_space_is_told_where_it_matters(tmp_path):
    def text_of(number: int, folder: str) -> str:
        error = OSError(number, os.strerror(number), f"{folder}/a")
        return str(writing.explained(error, folder, "a", ""))

    assert re.search(
        r"left on device \([\d,.]+ MB of [\d,.]+ MB free\)", text_of(28, str(tmp_path))
    )
    for number, folder in ((13, str(tmp_path)), (30, str(tmp_path)), (28, "gs://b"), (28, "/proc")):
        assert "MB" not in text_of(number, folder)
    with pytest.raises(FolderNotWritableError, match=r"\(/proc/foo\)"):
        writing.check_folder("/proc/foo", "output_dir")


def test_an_output_that_is_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to("a")
    refused = pytest.raises(FolderNotWritableError, match="it is a loop of symbolic links")
    with refused, writing.writable_file(str(tmp_path / "a"), "output"):
        raise AssertionError("not reached")


def test_explained_errors(tmp_path):
    folder = str(tmp_path)
    path = f"{folder}/eval_0/events.1"
    full: List[BaseException] = [
        OSError(28, "No space left on device", path),
        tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device"),
        RuntimeError(f"{path}; No space left on device\n\tFailed to flush 3 events"),
    ]
    for error in full:
        with pytest.raises(FolderNotWritableError) as caught, writing.explained_errors(folder):
            raise error
        text = str(caught.value)
        assert text.startswith(f"eval_0/events.1 could not be written to {folder}: no space left")
        assert caught.value.__cause__ is error and "\n" not in text
    others = [
        OSError(28, "No space left on device", "/elsewhere/file"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        ValueError(f"{path}; No space left on device"),
    ]
    for error in others:
        with pytest.raises(type(error)), writing.explained_errors(folder):
            raise error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_event_files(tmp_path, capfd):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(tmp_path))
    summary = tf1.Summary(value=[tf1.Summary.Value(tag="a" * 500, simple_value=1.0)])

    def write() -> None:
        for _ in range(1000):
            writer.add_summary(summary)
        writer.flush()
        writer.add_summary(summary)

    refused = pytest.raises(FolderNotWritableError)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, limits[1]))
    try:
        with refused as caught, writing.explained_errors(str(tmp_path)):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"could not be written to {tmp_path}: file too large" in str(caught.value)
    assert str(caught.value).startswith("events.out.tfevents.")
    assert "Traceback" not in capfd.readouterr().err


def test_event_threads_are_silent(tmp_path, monkeypatch):
    shown: List[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: shown.append(str(told.exc_value)))

    def fail(name: str, error: Exception) -> None:
        def run() -> None:
            raise error

        thread = threading.Thread(target=run, name=name)
        thread.start()
        thread.join()

    with writing.explained_errors(str(tmp_path)):
        fail("EventLoggerThread", RuntimeError("events; No space left on device"))
        fail("EventLoggerThread", RuntimeError("a fault"))
        fail("another", RuntimeError("No space left on device"))
    assert shown == ["a fault", "No space left on device"]


def test_a_folder_without_results_is_removed(tmp_path):
    with (
        pytest.raises(KeyError),
        writing.writable_folder(str(tmp_path / "new" / "deep"), "output_dir"),
    ):
        assert (tmp_path / "new" / "deep").is_dir()
        raise KeyError
    assert not (tmp_path / "new").exists()
    with writing.writable_folder(str(tmp_path / "new"), "output_dir"):
        (tmp_path / "new" / "result").touch()
    assert (tmp_path / "new" / "result").exists()


def test_files(tmp_path):
    with writing.writable_file(str(tmp_path / "new" / "file"), "output"):
        (tmp_path / "new" / "file").write_text("old")
    with writing.writable_file(str(tmp_path / "new" / "file"), "output"):
        assert (tmp_path / "new" / "file").read_text() == "old"
    refused = pytest.raises(FolderNotWritableError, match=r"^output cannot be written to: ")
    with refused as caught, writing.writable_file(str(tmp_path / "new"), "output"):
        pass
    assert "it is a folder, not a file" in str(caught.value)
    assert os.listdir(tmp_path / "new") == ["file"]


def test_a_file_that_becomes_full(tmp_path):
    path = str(tmp_path / "file")
    refused = pytest.raises(FolderNotWritableError, match="no space left")
    with refused, writing.writable_file(path, "output"):
        raise OSError(28, "No space left on device", path)
    with pytest.raises(OSError, match="elsewhere"), writing.writable_file(path, "output"):
        raise OSError(28, "No space left on device", "/elsewhere")


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with writing.writable_file(str(tmp_path / "pipe"), "output"):
        pass
