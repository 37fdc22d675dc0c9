from typing import Any

import pytest

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import UsageError


def test_a_bucket_that_cannot_be_reached(monkeypatch):
    def unreachable(path: str) -> Any:
        raise tf.errors.UnavailableError(None, None, f"no host for {path}")

    monkeypatch.setattr(tf.io.gfile, "exists", unreachable)
    with pytest.raises(UsageError, match=r"^gs://b/a: cannot be read: no host .*credentials"):
        files.read_text("gs://b/a")


def test_new_folders_without_content_are_removed(tmp_path):
    folder = tmp_path / "a" / "b" / "c"
    with pytest.raises(KeyError), files.removed_if_empty(str(folder)):
        folder.mkdir(parents=True)
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with files.removed_if_empty(f"{folder}/"):
        folder.mkdir(parents=True)
        (tmp_path / "a" / "file").write_text("kept")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    with files.removed_if_empty(str(tmp_path / "a")):
        (tmp_path / "a" / "file").unlink()
    assert (tmp_path / "a").exists()  # It was there before.
