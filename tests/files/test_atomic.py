"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from estimator_det.compat import tf
from estimator_det.files import atomic


@pytest.mark.parametrize("content", ["Ä\n", b"\x00\xff"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_content_replaces_what_was_there(content, is_remote, tmp_path):
    folder = "ram://atomic" if is_remote else str(tmp_path)
    path = f"{folder}/new/file"
    for written in (b"before", content):
        atomic.write(path, written)
    with tf.io.gfile.GFile(path, "rb") as file:
        assert file.read() == (content.encode() if isinstance(content, str) else content)
    assert tf.io.gfile.listdir(f"{folder}/new") == ["file"]


def test_a_write_that_fails_keeps_the_old_content_and_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(source: str, target: str) -> None:
        assert pathlib.Path(source).read_text() == "new"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        atomic.write(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
