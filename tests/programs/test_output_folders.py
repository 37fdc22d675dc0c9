"""Outputs of every verb: what cannot be written, and what is not replaced."""

import os
import pathlib
import re
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
        "--label_map=IN/map.pbtxt", "--output_dir",
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


# With RUN for the folder of a run, in which FOREIGN names are files that no verb wrote.
FOREIGN = (
    "checkpoint", "model.ckpt-1.index", "label_map.pbtxt", "pipeline.config", "report.txt",
    "benchmark.json", "data.png", "detections.jsonl", "train.record-00000-of-00002", "a.json",
)  # fmt: skip
REFUSED = {
    "export CONFIG --trained_checkpoint_prefix IN/model --output_dir RUN --overwrite":
    "export never",
    "export CONFIG --trained_checkpoint_prefix RUN/model.ckpt-1 --output_dir RUN": "RUN is an",
    "import --from frozen_graph IN/exported/frozen_inference_graph.pb --pipeline_config_path "
    "CONFIG --output_dir RUN --overwrite": "import never",
    "demo --output_dir RUN": "demo never",
    "report RUN --output RUN/checkpoint": "checkpoint exists, and report is not",
    "detect IN --model IN --output_dir IN": "IN is an input",
    "detect IN/a.png --model IN --output_dir RUN": "detections.jsonl exists, and detect is not",
    "benchmark IN/exported --data IN/a.record --output_dir RUN": "benchmark.json exists",
    "convert --from coco --to tfrecord --images IN --annotations IN/a.json --output_dir RUN "
    "--overwrite": "RUN contains train.record-00000-of-00002, which convert did not write",
    "convert --from coco --to tfrecord --images IN --annotations IN/a.json --output_dir RUN "
    "--overwrite --split val": "label_map.pbtxt has other classes than the source",
    "convert --from tfrecord --to coco --records IN/a.record --label_map IN/map.pbtxt --output "
    "RUN/a.json": "a.json exists, and convert is not",
    "init --records IN --output_dir RUN --overwrite": "pipeline.config exists, and init is not",
    "check-data CONFIG --output_dir RUN": "report.txt exists, and check-data is not",
    "check-config CONFIG --tpu --no_build --fix RUN/pipeline.config":
    "pipeline.config exists, and check-config --fix is not",
    "show-data CONFIG --output RUN/data.png": "data.png exists, and show-data is not",
}  # fmt: skip


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_verb_did_not_write_stays(command, inputs, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    for name in FOREIGN:
        (run / name).write_text('item { id: 1 name: "other" }')
    (inputs / "model.index").touch()
    image = '{"id": 1, "file_name": "a.png", "width": 8, "height": 8}'
    (inputs / "a.json").write_text(
        f'{{"images": [{image}], "categories": [{{"id": 1, "name": "one"}}], "annotations": []}}'
    )
    places = {"RUN": str(run), "IN": str(inputs), "CONFIG": CONFIG}

    def filled(text: str) -> str:
        return re.sub("RUN|IN|CONFIG", lambda match: places[match[0]], text)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert cli.main(filled(command).split()) == console.EXIT_USAGE
    error = capsys.readouterr().err
    assert filled(REFUSED[command]) in error and "--overwrite" not in error
    assert before == {path: path.read_bytes() for path in before}
