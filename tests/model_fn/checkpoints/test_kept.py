from __future__ import annotations

import itertools
import types

from estimator_det.compat import tf1
from model_fn.checkpoints import kept


def test_one_checkpoint_in_so_many_hours_is_never_deleted(tmp_path, monkeypatch):
    clock = itertools.count(0, 1800)  # half an hour from one look at it to the next
    monkeypatch.setattr(kept, "time", types.SimpleNamespace(time=lambda: next(clock)))
    checkpoints = kept.KeptCheckpoints(str(tmp_path), 1, keep_every_n_hours=1.0)
    for step in range(7):
        (tmp_path / f"model.ckpt-{step}.index").touch()
        checkpoints.add(f"model.ckpt-{step}")
    left = sorted(path.stem for path in tmp_path.glob("*.index"))
    # Saved after 0.5, 1, 1.5, … hours; those after 1.5, 2.5 hours are the first past 1, 2.
    assert left == ["model.ckpt-2", "model.ckpt-4", "model.ckpt-6"]
    assert tf1.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-6")
