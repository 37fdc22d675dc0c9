"""The programs and commands of the tutorial run in their order, on few images and steps."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from estimator_det.programs import cli, step_speed
from tests import small_extractor

ROOT = pathlib.Path(__file__).parent.parent
PROGRAM = re.compile(r"`(\w+\.py)`[^`]*```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What would take minutes or needs a good detector, and its replacement here.
REPLACEMENTS = {
    "range(1500)": "range(24)",
    "--hours 0.1": "--num_train_steps 2",
    "--threshold auto": "--threshold 0",
}


@pytest.mark.slow
def test_programs_and_commands_of_the_tutorial_run(tmp_path, monkeypatch, no_charts):
    small_extractor.use(monkeypatch, 6, 16)  # A MobileNet would take twice the time.
    monkeypatch.chdir(tmp_path)
    speed = step_speed.Speed(seconds=0.1, batch_size=8, num_bytes=10**9)
    monkeypatch.setattr(step_speed, "measure", lambda *_, **__: speed)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    page = (ROOT / "docs" / "tutorial.md").read_text()
    for text, replacement in REPLACEMENTS.items():
        assert text in page
        page = page.replace(text, replacement)
    for name, program in PROGRAM.findall(page):
        pathlib.Path(name).write_text(program)
    commands = [block for language, block in BLOCK.findall(page) if not language]
    for block in commands:
        for command in block.replace("\\\n", "").splitlines():
            verb, *arguments = shlex.split(command)
            if verb == "estimator-det":
                assert cli.main(arguments) == 0, command
            else:
                command = re.sub("^python ", f"{shlex.quote(sys.executable)} ", command)
                subprocess.run(["bash", "-euc", command], check=True)
    lines = pathlib.Path("detections/detections.jsonl").read_text().splitlines()
    assert len(lines) == 24
    assert pathlib.Path("models/detector/1/saved_model.pb").is_file()
