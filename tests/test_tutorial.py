"""The programs and commands of the two long pages run in their order, on few images and steps."""

from __future__ import annotations

import pathlib
import re
import runpy
import shlex
import subprocess
import tarfile
from typing import Any, Dict, List

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import make_detector
from estimator_det.nets import mobilenet
from estimator_det.programs import cli, pretrained, step_speed
from estimator_det.protos import pipeline_pb2
from exporters.formats import tf2_checkpoint
from tests import small_extractor
from tests.detectors.configs import small_config

ROOT = pathlib.Path(__file__).parent.parent
PROGRAM = re.compile(r"`(\w+\.py)`[^`]*```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What would take minutes or needs a good detector, and its replacement here.
TUTORIAL = {
    "range(1500)": "range(24)",
    "--hours 0.1": "--num_train_steps 1",
    "--threshold auto": "--threshold 0",
}
TF2_ZOO = {
    "--hours 0.5": "--num_train_steps 1",
    "--num_train_steps 4000": "--num_train_steps 1",
    "delay: 2000": "delay: 0",
    "--threshold 0.4": "--threshold 0",
    "--threshold auto": "--threshold 0",
}
PUBLISHED = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"


@pytest.fixture
def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, no_charts: None
) -> pathlib.Path:
    """The working folder; steps are not measured."""
    monkeypatch.chdir(tmp_path)
    speed = step_speed.Speed(seconds=0.1, batch_size=8, num_bytes=10**9)
    monkeypatch.setattr(step_speed, "measure", lambda *_, **__: [speed])
    return tmp_path


def _text(name: str, replacements: Dict[str, str]) -> str:
    page = (ROOT / "docs" / name).read_text()
    for text, replacement in replacements.items():
        assert text in page
        page = page.replace(text, replacement)
    return page


def _run(page: str) -> None:
    """Writes the programs of a page and runs its commands."""
    for name, program in PROGRAM.findall(page):
        pathlib.Path(name).write_text(program)
    commands = [block for language, block in BLOCK.findall(page) if not language]
    for block in commands:
        for command in block.replace("\\\n", "").splitlines():
            verb, *arguments = shlex.split(command)
            if verb == "estimator-det":
                assert cli.main(arguments) == 0, command
            elif verb == "python":
                runpy.run_path(arguments[0], run_name="__main__")
            else:
                subprocess.run(["bash", "-euc", command], check=True)


@pytest.mark.slow
def test_programs_and_commands_of_the_tutorial_run(folder, monkeypatch):
    small_extractor.use(monkeypatch, 6, 16)  # A MobileNet would take twice the time.
    _run(_text("tutorial.md", TUTORIAL))
    lines = pathlib.Path("detections/detections.jsonl").read_text().splitlines()
    assert len(lines) == 24
    assert pathlib.Path("models/detector/1/saved_model.pb").is_file()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_commands_of_the_tf2_zoo_run(folder, monkeypatch):
    monkeypatch.setattr(mobilenet, "mobilenet_v1", _shallow)  # It is built a dozen times.
    monkeypatch.setenv(pretrained.CACHE_VARIABLE, str(folder / "cache"))
    paths = _publish(folder / "published")
    (folder / "cache").mkdir()
    with tarfile.open(folder / "cache" / f"{PUBLISHED}.tar.gz", "w:gz") as archive:
        archive.add(folder / "published", PUBLISHED)
    (draw, program), *_ = PROGRAM.findall(_text("tutorial.md", TUTORIAL))
    _run(f"`{draw}`\n```python\n{program}```\n```\npython {draw}\n```\n")
    _run(_text("tf2_zoo.md", TF2_ZOO))
    lines = pathlib.Path("detections/detections.jsonl").read_text().splitlines()
    assert len(lines) == 24
    exported = tf1.train.NewCheckpointReader("exported/tf2_checkpoint/ckpt-0")
    assert all(exported.has_tensor(f"{path}/.ATTRIBUTES/VARIABLE_VALUE") for path in paths)
    assert pathlib.Path("exported_integers/model.tflite").is_file()


def _shallow(inputs: tf.Tensor, depth: Any, build: Any = mobilenet.mobilenet_v1, **_: Any) -> Any:
    """MobileNet v1 of 5 layers, of which the last two have the names of layers 11 and 13."""
    layers = (mobilenet.V1_LAYERS[0], *[mobilenet.MobileNetLayer(2, 64)] * 4)
    maps = list(build(inputs, depth, layers=layers).values())
    return {"Conv2d_11_pointwise": maps[-3], "Conv2d_13_pointwise": maps[-1]}


def _publish(folder: pathlib.Path) -> List[str]:
    """Writes the contents of an archive of the zoo, of a small network; returns its paths."""
    model = small_config("num_classes: 3 feature_extractor { type: 'ssd_mobilenet_v1_keras' }")
    detector = make_detector(model, is_training=False)
    with tf.Graph().as_default(), tf1.Session() as session:
        detector.predict(tf.zeros([1, 64, 64, 3]))
        session.run(tf1.global_variables_initializer())
        values = session.run({each.op.name: each for each in tf1.global_variables()})
    paths = detector.object_paths([*values])
    values = {path: values[name] for name, path in paths.items()}
    tf2_checkpoint.write_checkpoint(str(folder / "checkpoint"), values)
    config = pipeline_pb2.TrainEvalPipelineConfig(model=model)
    (folder / "pipeline.config").write_text(pipeline.format_pipeline(config))
    module = tf.Module()
    module._model = tf2_checkpoint.tree(values)["model"]
    tf.saved_model.save(module, str(folder / "saved_model"))
    return [*values]
