"""What programs print on a terminal, and in the environment of a user."""

from __future__ import annotations

import os
from typing import Dict

import pytest

from tests.conftest import TESTS
from tests.processes import messages, run_python
from tests.programs.forking import small_config


def _environment() -> Dict[str, str]:
    """Without TF_CPP_MIN_LOG_LEVEL, which the tests set."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TF_")}
    return {**kept, "PYTHONPATH": str(TESTS.parent)}


SIMPLE = "from tests.programs import forking; forking.simplify()"
PROGRAM = f"""
import sys
import estimator_det
estimator_det.is_program = True
from estimator_det.compat import tf
from estimator_det.config import pipeline
from model_fn.runs import runner
{SIMPLE}

runner.train(pipeline.read_pipeline(sys.argv[1]), sys.argv[2], num_train_steps=2)
tf.compat.v1.train.remove_checkpoint("none")  # which is deprecated, and called by the user
"""


@pytest.mark.slow
def test_a_program_prints_no_advice_to_its_authors(tmp_path):
    config = small_config(tmp_path, num_steps=2)
    (tmp_path / "user.py").write_text(PROGRAM)
    command = (str(tmp_path / "user.py"), config, str(tmp_path / "run"))
    ended = run_python(*command, env=_environment(), check=True)
    assert "step 2/2 | " in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "deprecated" in line]
    assert len(lines) == 1 and f"From {tmp_path / 'user.py'}:" in lines[0]


@pytest.mark.slow
def test_training_prints_nothing_of_tensorflow(tmp_path):
    config = small_config(tmp_path, num_steps=2)
    (tmp_path / "simple.py").write_text(SIMPLE)
    command = ["-m", "estimator_det", "train", config, "--import=simple"]
    command += ["--model_dir", str(tmp_path / "run"), "--progress_steps=1"]
    ended = run_python(*command, cwd=tmp_path, env=_environment(), check=True)
    lines = messages(ended)
    assert [line.split(" | ")[0] for line in lines if line.startswith("step ")] == [
        "step 1/2",
        "step 2/2",
    ]
    for text in ("tensorflow", "absl", ".cc:", "WARNING", "deprecat", "/site-packages/"):
        assert text not in "\n".join(lines), ended.stderr
