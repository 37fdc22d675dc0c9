"""Parts of images, collected on disk."""

from __future__ import annotations

import os

import pytest

from inputs.datasets.grouping import Groups, Part


@pytest.mark.parametrize("has_folder", [True, False])
def test_parts_by_key_in_the_order_of_their_addition(has_folder, tmp_path, monkeypatch):
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    groups = Groups(str(folder) if has_folder else "")
    assert len(os.listdir(folder)) == has_folder
    for line, (key, table) in enumerate([("b", "x"), (1, "x"), ("b", "y"), ("1", "x")]):
        groups.add(key, table, line, f'["{key}"]')
    groups.finish()
    assert groups.take("b") == [Part("x", 0, ["b"]), Part("y", 2, ["b"])]
    assert groups.take(1) == [Part("x", 1, ["1"])] and not groups.take("c")
    assert groups.has("b", "y") and not groups.has("1", "y")
    assert [part.line for part in groups.table_parts("x")] == [0, 1, 3]
    assert [key for key, _ in groups.all()] == ["b", 1, "1"]
    groups.close()
    assert os.listdir(tmp_path) == ["scratch"] and os.listdir(folder) == []
