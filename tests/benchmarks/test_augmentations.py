from __future__ import annotations

import os

import numpy as np
import pytest

from benchmarks.augmentations import __main__ as program
from benchmarks.augmentations import measure


def test_a_sample_as_large_as_asked_for() -> None:
    sample = measure.make_sample(30, 40, 5, masks=True, scores=True)
    assert sample.image.shape == (30, 40, 3) and sample.boxes.shape == (5, 4)
    assert sample.masks.shape == (5, 30, 40) and sample.multiclass_scores.shape == (5, 4)
    assert np.array(sample.boxes).max() <= 1 and set(np.unique(sample.masks)) == {0, 1}
    np.testing.assert_array_equal(sample.area, np.sum(sample.masks, axis=(1, 2)))


def test_settings_are_of_registered_steps() -> None:
    listed = {*measure.SETTINGS, *measure.NEEDS_MASKS, *measure.NEEDS_SCORES}
    assert listed <= set(measure.names()) and len(measure.names()) == 43


@pytest.mark.parametrize("name", ["random_horizontal_flip", "mixup"])
def test_a_step_and_its_kernels_are_measured(name: str) -> None:
    """How long they take depends on the machine; that kernels were traced does not."""
    found = measure.measure(name, (60, 80), 3, masks=False, images=2, repeats=1)
    assert found.name == name and found.num_kernels > 3
    assert found.ratio == found.step_us / found.kernels_us


def test_the_program_prints_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures(name: str, *_: object) -> measure.Figures:
        return measure.Figures(name, 300.0, 100.0 if name == "mixup" else 250.0, 7)

    monkeypatch.setattr(measure, "measure", figures)
    chosen = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: chosen.append(cpus), raising=False)
    assert program.main(["--only", "mixup", "--only", "mosaic", "--width", "20"]) == 0
    assert chosen == [{min(os.sched_getaffinity(0))}]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "20 x 480 pixels, 8 boxes, one processor"
    assert lines[2].split() == ["mixup", "300", "100", "3.00", "7", "*"]
    assert lines[3].split() == ["mosaic", "300", "250", "1.20", "7"]
    assert lines[4] == "above 1.5 times: mixup"
    with pytest.raises(SystemExit):
        program.main(["--only", "mix"])
    assert "['mix'] are not registered" in capsys.readouterr().err
