"""Precisions that a process is switched to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import machine
from model_fn.runs import precision
from model_fn.runs.options import BFLOAT16_CONVOLUTIONS
from tests.model_fn import fake

# Two runs, as a training and its evaluation are; the second one finds convolutions rounded.
PROGRAM = """
from estimator_det.compat import tf
from model_fn.runs import precision
for _ in range(2):
    precision.set_up("bfloat16_convolutions")
image = tf.fill([1, 8, 8, 16], 1 + 2**-10)
print(tf.nn.conv2d(image, tf.ones([3, 3, 16, 1]), 1, "VALID").numpy().max())
"""


@pytest.mark.skipif(not machine.can_round_convolutions(), reason="this processor is without AMX")
def test_convolutions_are_rounded_only_in_processes_that_have_not_computed(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, check=True)
    assert float(done.stdout) == 144
    tf.nn.conv2d(tf.ones([1, 8, 8, 16]), tf.ones([3, 3, 16, 1]), 1, "VALID")
    with pytest.raises(UsageError, match="TensorFlow has computed before"):
        fake.train(str(tmp_path), 1, precision=BFLOAT16_CONVOLUTIONS)


def test_machines_without_it_are_refused(monkeypatch):
    monkeypatch.setattr(machine, "can_round_convolutions", lambda: False)
    with pytest.raises(UsageError, match="needs a processor with amx_bf16"):
        precision.set_up(BFLOAT16_CONVOLUTIONS)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["GPU:0"])
    with pytest.raises(UsageError, match="on a GPU give mixed_bfloat16"):
        precision.set_up(BFLOAT16_CONVOLUTIONS)
    for other in (None, "float32", "mixed_bfloat16"):
        precision.set_up(other)
