"""Folders and files that a verb may replace."""

from __future__ import annotations

import pathlib

import pytest

from estimator_det.files import atomic, ownership

VERB = "export"
OF_RUN = ("model.ckpt-10.index", "events.out.tfevents.1.host", "progress.jsonl", "training.lock")


def _fill(folder: pathlib.Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "is_earlier", "overwrite", "message"),
    [
        (["a"], False, True, "is not empty, and contains no earlier export; give a new folder"),
        ([".estimator-det-import"], False, True, "contains no earlier export"),
        ([".estimator-det-export"], False, False, r"earlier export; .* \(--overwrite\) to replace"),
        (["a"], True, False, r"earlier export; .* \(--overwrite\)"),
        *((["a", ".estimator-det-export", name], True, True, "folder of a training run")
          for name in OF_RUN),
    ],
)  # fmt: skip
def test_folders_that_are_not_replaced(names, is_earlier, overwrite, message, tmp_path):
    folder = _fill(tmp_path / "f", *names)
    options = {"overwrite": overwrite, "is_earlier": is_earlier}
    with pytest.raises(FileExistsError, match=message) as error:
        ownership.check_folder(folder, VERB, **options)
    assert folder in str(error.value)
    # Only for what the flag helps, it is proposed.
    assert ("--overwrite" in str(error.value)) == (not overwrite)


def test_folders_that_are_replaced(tmp_path):
    new = str(tmp_path / "new")
    assert ownership.check_folder(new, VERB, overwrite=False)
    ownership.mark(new, VERB)
    assert ownership.check_folder(new, VERB, overwrite=False, ignored=[ownership.marker(VERB)])
    assert not ownership.check_folder(new, VERB, overwrite=True)
    earlier = _fill(tmp_path / "earlier", "model.ckpt.index", "saved_model")
    assert not ownership.check_folder(earlier, VERB, overwrite=True, is_earlier=True)


def test_files_beside_others(tmp_path):
    folder = _fill(tmp_path / "f", "a", "mine")
    for _ in range(2):
        with pytest.raises(FileExistsError, match="f/a exists, and detect is not known"):
            ownership.check_files(folder, "detect", ["b", "a"])
        ownership.check_files(folder, "detect", ["b", "c"])
    ownership.mark(folder, "detect")
    ownership.check_files(folder, "detect", ["a"])
    with pytest.raises(FileExistsError):
        ownership.check_files(folder, "convert", ["a"])


@pytest.mark.parametrize("folder", ["", "ram://owned/"])
def test_files(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = f"{folder}page.html"
    ownership.check_file(path, "report")
    for content, is_own in (("", True), ("<!-- estimator-det report -->", True), ("mine", False),
                            ("estimator-det init", False), (" " * 5000 + "estimator-det report",
                            False)):  # fmt: skip
        atomic.write(path, content)
        if is_own:
            ownership.check_file(path, "report")
        else:
            with pytest.raises(FileExistsError, match=r"page\.html exists, and report is not "):
                ownership.check_file(path, "report")


def test_inputs_are_no_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    ownership.refuse_inputs("b", ["a", "."])
    for output, path in ((".", str(tmp_path)), ("link", "."), ("gs://a/b/", "gs://a/b")):
        with pytest.raises(FileExistsError, match="is an input"):
            ownership.refuse_inputs(output, ["a", path])
