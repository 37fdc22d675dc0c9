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


def test_brackets_in_names_and_patterns(tmp_path):
    exact = tmp_path / "a[1]"
    exact.touch()
    assert files.matching(str(exact)) == [str(exact)]
    assert files.matching(f"{tmp_path}/a[[]?]") == [str(exact)]
    assert not files.matching(f"{tmp_path}/b[1]*") and "[[]" in files.bracket_hint("b[1]*")


def test_new_folders_without_content_are_removed(tmp_path):
    folder = tmp_path / "a" / "b" / "c"
    with files.removed_if_empty(f"{folder}/"):
        folder.mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with files.removed_if_empty(str(tmp_path / "a")):
        pass
    assert (tmp_path / "a").exists()  # It was there before.
