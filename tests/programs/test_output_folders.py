"""Every verb says in the same words that its output cannot be written, before it starts."""

import os
import pathlib
from typing import Dict, List

import pytest
from PIL import Image

from estimator_det.compat import tf
from estimator_det.programs import cli, console, demo
from tests.inputs import examples

CONFIG = str(demo.CONFIG_FILE)

# IN stands for a folder with an image, a record, a label map and detections.
COMMANDS: Dict[str, List[str]] = {
    "benchmark": ["benchmark", "IN/exported", "--data=IN/a.record", "--output_dir"],
    "check-data": ["check-data", CONFIG, "--output_dir"],
    "convert from coco": [
        "convert", "--from=coco", "--to=tfrecord", "--images=IN", "--annotations=IN/a.json",
        "--output_dir",
    ],
    "convert to coco": [
        "convert", "--from=tfrecord", "--to=coco", "--records=IN/a.record",
        "--label_map=IN/map.pbtxt", "--output",
    ],
    "demo": ["demo", "--size=tiny", "--output_dir"],
    "detect": ["detect", "IN/a.png", "--model=IN", "--output_dir"],
    "evaluate": [
        "evaluate", "--detections=IN/a.json", "--records=IN/a.record",
        "--label_map=IN/map.pbtxt", "--model_dir",
    ],
    "export": ["export", CONFIG, "--trained_checkpoint_prefix=IN/model", "--output_dir"],
    "import": [
        "import", "--from=checkpoint", "IN/model", f"--pipeline_config_path={CONFIG}",
        "--output_dir",
    ],
    "show-data": ["show-data", CONFIG, "--output"],
}  # fmt: skip


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    (folder / "exported").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    examples.write(folder / "a.record", [b"a record"])
    (folder / "a.json").write_text("[]")
    with tf.Graph().as_default() as graph:
        tf.constant(0.0)
    graph_file = folder / "exported" / "frozen_inference_graph.pb"
    graph_file.write_bytes(graph.as_graph_def().SerializeToString())
    (folder / "map.pbtxt").write_text('item { id: 1 name: "one" }\n')
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_output_below_a_file(name, inputs, capsys):
    *command, option = [text.replace("IN", str(inputs), 1) for text in COMMANDS[name]]
    below = inputs / "map.pbtxt" / "below" / "output"
    before = sorted(os.listdir(inputs))
    assert cli.main([*command, option, str(below)]) == console.EXIT_NOT_WRITABLE
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1
    assert lines[-1].startswith(f"error: {option[2:]} cannot be written to: "), lines
    assert f"not a folder ({below}" in lines[-1] or f"not a folder ({below.parent}" in lines[-1]
    assert "Nothing was started" in lines[-1] and "Errno" not in lines[-1]
    assert sorted(os.listdir(inputs)) == before
