"""An export is exchanged whole, whenever the process is killed."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
from typing import Any, Callable, Dict

import pytest

from estimator_det.compat import tf
from estimator_det.errors import FolderInUseError
from exporters.formats import exchange

NAMES = ("saved_model", "model.onnx", "model.tflite", "label_map.pbtxt")
EARLIER = {"saved_model/a": "1", "saved_model/b": "1", "model.onnx": "1", "model.ckpt": "1"}
LATER = {"saved_model/a": "2", "model.tflite": "2", "label_map.pbtxt": "2", "model.ckpt": "2"}
_CALLS = (
    (os, "rename"), (os, "link"), (os, "mkdir"), (os, "unlink"), (os, "rmdir"),
    (exchange.tf.io.gfile, "remove"), (exchange.tf.io.gfile, "rmtree"),
)  # fmt: skip


def _fill(folder: pathlib.Path, files: Dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _files(folder: pathlib.Path) -> Dict[str, str]:
    """Texts of the files of the export that a reader gets."""
    folder = pathlib.Path(exchange.current(str(folder)))
    unfinished = folder / exchange.UNFINISHED
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in paths
        if unfinished not in path.parents and path.name != "notes.txt"
    }


def _killed_at(call: int, patch: Any) -> None:
    """Kills this process instead of a call, counted from 0, of those that change files."""
    counter = iter(range(1000))

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if next(counter) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counted

    for module, name in _CALLS:
        patch.setattr(module, name, counting(getattr(module, name)))


@pytest.mark.parametrize(
    ("has_links", "stride"),
    [(True, 2), (False, 3), *(pytest.param(x, 1, marks=pytest.mark.exhaustive) for x in (0, 1))],
)
def test_a_reader_finds_one_export_whole_whenever_the_process_is_killed(
    has_links, stride, tmp_path, monkeypatch
):
    if not has_links:
        monkeypatch.setattr(exchange.os, "link", _no_links)
    seen, call, status = [], 0, 1
    while status:
        output = tmp_path / str(call)
        _fill(output, {**EARLIER, "notes.txt": "mine"})
        child = os.fork()
        if not child:
            _killed_at(call, monkeypatch)
            with exchange.unfinished(str(output)) as folder:
                _fill(pathlib.Path(folder), LATER)
                exchange.exchange(folder, str(output), NAMES)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        seen.append(_files(output))
        assert seen[-1] in (EARLIER, LATER), call
        assert exchange.current(str(output / "model.ckpt")).endswith("model.ckpt")

        # The next export completes it, and removes what is left.
        exchange.complete(str(output), NAMES)
        with exchange.unfinished(str(output)):
            pass
        assert _files(output) == seen[-1] and (output / "notes.txt").read_text() == "mine"
        assert not {exchange.FINISHED, exchange.UNFINISHED} & {x.name for x in output.iterdir()}
        shutil.rmtree(output)
        call += stride
    assert call > 10 and EARLIER in seen and seen[-1] == LATER


def test_two_exports_into_one_folder(tmp_path):
    output = str(tmp_path / "new" / "exported")
    with exchange.locked(output):
        with pytest.raises(FolderInUseError, match=f"another process exports to {output}: wait"):
            exchange.locked(output).__enter__()
        with exchange.locked(f"{output}-2"):
            pass
    with exchange.locked(output):
        pass
    assert list(tmp_path.iterdir()) == []


def _no_links(source: str, target: str) -> None:
    raise OSError("this file system has no links")


def test_a_remote_export_is_exchanged():
    """Object stores have no folders to rename."""
    output = "ram://exchanged/exported"
    for name in ("saved_model/old", "model.onnx", "other"):
        tf.io.gfile.makedirs(os.path.dirname(f"{output}/{name}"))
        with tf.io.gfile.GFile(f"{output}/{name}", "w") as file:
            file.write("old")
    with exchange.unfinished(output) as folder:
        _fill(pathlib.Path(folder), LATER)
        exchange.exchange(folder, output, NAMES)
    names = ["label_map.pbtxt", "model.ckpt", "model.tflite", "other", "saved_model"]
    assert sorted(tf.io.gfile.listdir(output)) == names
    assert tf.io.gfile.listdir(f"{output}/saved_model") == ["a"]
    assert exchange.current(output) == output
