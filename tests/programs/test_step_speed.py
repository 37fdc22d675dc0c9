"""Memory of a measured step."""

from __future__ import annotations

import numpy as np

from estimator_det.programs import step_speed


def test_memory_that_was_freed_before_a_step_does_not_count():
    block = np.ones(2**26, np.float32)  # 256 MiB
    before = step_speed.peak_memory()
    del block
    step_speed.reset_peak_memory()
    assert step_speed.peak_memory() < before - 2**27
