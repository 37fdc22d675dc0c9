"""Hostile text and absurd numbers at the programs' edges."""

from __future__ import annotations

import json
import re
from typing import Any, Dict

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import cli, console, model_main
from exporters import formats
from exporters.loaded_model import LoadedModel
from inputs.bad_records.kinds import FAIL, LONGEST_MESSAGE, SKIP, RecordFault
from inputs.bad_records.log import FaultLog, RecordFaultError
from model_fn.checks import anchor_coverage
from model_fn.debugging.bad_step import UsedRecord
from model_fn.drawing import charts
from model_fn.evaluation import report
from tests.hostile import CONTROLS, shows_as_itself
from tests.inputs import examples
from tests.model_fn.checks.small import small_config
from tests.programs.test_data_verbs import record

LONG = CONTROLS + "x" * 10**6
NAME = CONTROLS.replace("/", "")  # a file's


def _output(capsys: pytest.CaptureFixture, *, bars: bool = False) -> str:
    captured = capsys.readouterr()
    # A progress bar returns to the start of its line.
    text = captured.out + (captured.err.replace("\r", "") if bars else captured.err)
    assert text and shows_as_itself(text), repr(text[:2000])
    return text


def _fault(message: str, action: str = FAIL) -> RecordFault:
    return RecordFault("unparsable", action, message=message, remedy="write it again")


def test_errors_of_records(capsys, tmp_path):
    path = tmp_path / "bad_records.jsonl"

    def fail() -> int:
        with pytest.raises(RecordFaultError) as caught:
            FaultLog(str(path)).report(_fault(LONG).at(NAME, 3, LONG))
        # As TensorFlow raises it: escaped, among words of its own.
        text = "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b"\\" else f"\\{byte:03o}"
            for byte in str(caught.value).encode()
        )
        message = f"assertion failed: [{text}]\n\t [[{{node Assert}}]]"
        raise tf.errors.InvalidArgumentError(None, None, message)

    assert console.run(fail) == console.EXIT_FAILED
    text = _output(capsys)
    assert text.startswith("error: a\\x1b[2J") and text.endswith("Remedy: write it again\n")
    assert len(text) < 3 * LONGEST_MESSAGE
    line = path.read_text(encoding="utf-8")
    assert shows_as_itself(line) and len(line) < 3 * LONGEST_MESSAGE
    assert json.loads(line)["source_id"].startswith(CONTROLS) and line.count("\n") == 1


def test_reports_of_faults_and_steps(capsys):
    log = FaultLog()
    log.report(_fault(LONG, SKIP).at(LONG, 3, LONG))
    report.print_faults(log)
    report.print_notes({f"PerClass/{LONG}": LONG})
    report.print_results(LONG, {"loss": 1.0})
    _output(capsys)
    assert shows_as_itself(UsedRecord(0, LONG, "f", 1).sentence())
    assert len(UsedRecord(0, LONG, "f", 1).sentence()) < 1_000


class _Model(LoadedModel):
    """Finds an object with a hostile name in every image."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {1: CONTROLS.replace("\udcff", "")}, "")

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        return {
            "num_detections": np.float32([1]),
            "detection_boxes": np.float32([[[0.1, 0.1, 0.9, 0.9]]]),
            "detection_scores": np.float32([[0.9]]),
            "detection_classes": np.float32([[1]]),
        }


def test_detect(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "load_model", _Model)
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (20, 20)).save(folder / f"{NAME}.png")
    (folder / f"{NAME}2.png").write_bytes(b"no image")
    output = tmp_path / "out\udcff"  # a byte that is not UTF-8
    arguments = ["detect", "--model=m", f"--output_dir={output}", str(folder)]
    assert cli.main(arguments) == console.EXIT_FAILED
    assert _output(capsys).count("a\\x1b[2J") >= 3
    text = (output / "detections.jsonl").read_text(encoding="utf-8")
    assert shows_as_itself(text)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["file"] for line in lines] == [f"{folder}/{NAME}.png", f"{folder}/{NAME}2.png"]


CLASS = CONTROLS.replace("\udcff", "").replace("\x0b", "")  # text that can be encoded


def test_check_data(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(anchor_coverage, "has_anchors", lambda detector: False)
    monkeypatch.setattr(charts, "figure", lambda *_, **__: b"")
    source_id = (CLASS * 10**4).encode()
    broken = record(source_id, **{"image/encoded": b"x"})
    examples.write(tmp_path / "a.record", [record(CLASS.encode())] * 2 + [broken])
    label_map = tmp_path / "map.pbtxt"
    label_map.write_text(f'item {{ id: 1 name: "{CLASS}" }} item {{ id: 2 name: "b" }}')
    config = small_config(
        f"train_input_reader={{tf_record_input_reader {{input_path: '{tmp_path}/a.record'}} "
        f"label_map_path: '{label_map}'}}",
        "eval_input_reader=[]",
    )
    (tmp_path / "a.config").write_text(pipeline.format_pipeline(config))
    arguments = ["check-data", str(tmp_path / "a.config"), f"--output_dir={tmp_path / 'out'}"]
    for more in ([], ["--json"]):
        assert cli.main([*arguments, "--jobs=1", *more]) == console.EXIT_FAILED
        _output(capsys, bars=True)
    for name in ("findings.jsonl", "report.txt", "report.json"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert shows_as_itself(text), name


def test_arguments(capsys):
    assert cli.main(["detect", f"--{CONTROLS}", "--model=m", "a.png"]) == console.EXIT_USAGE
    assert "unknown option --a\\x1b[2J" in _output(capsys)
    assert model_main.main(["model_main", f"--{CONTROLS}"]) == console.EXIT_USAGE
    _output(capsys)


BAD_CONFIGS = [
    f"train_config {{ {CLASS} }}",
    "train_config { batch_size: 1" + "9" * 10**6 + " }",
    "a" * 10**6,
    f'model {{ ssd {{ feature_extractor {{ type: "{CLASS}" typ: 1 }} }} }}',
    f'train_config {{ fine_tune_checkpoint: "{CLASS}" optimizer {{ x }} }}',
    f'train_config {{ fine_tune_checkpoint: "{LONG[-(10**6) :]}" fine_tune_checkpoint_type: "a" }}',
    f'model {{ ssd {{ feature_extractor {{ type: "{CLASS * 1000}" }} }} }}',
]


@pytest.mark.parametrize("text", BAD_CONFIGS, ids=range(len(BAD_CONFIGS)))
def test_configurations(text, capsys, tmp_path):
    (tmp_path / "a.config").write_text(text, encoding="utf-8")
    assert cli.main(["check-config", str(tmp_path / "a.config"), "--no_build"]) != 0
    assert len(_output(capsys)) < 60_000
    flags = [f"--pipeline_config_path={tmp_path / 'a.config'}", f"--model_dir={tmp_path / 'm'}"]
    assert model_main.main(["model_main", *flags]) != 0
    assert len(_output(capsys)) < 60_000


def test_a_printed_configuration_is_whole_and_reads_the_same(capsys, tmp_path):
    patterns = [CLASS, "猫 é", "y" * 20_000]
    config = small_config()
    config.train_config.freeze_variables.extend(patterns)
    text = pipeline.format_pipeline(config)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert pipeline.parse_pipeline(text) == config
    (tmp_path / "a.config").write_text(text)
    cli.main(["check-config", str(tmp_path / "a.config"), "--no_build", "--print"])
    printed = capsys.readouterr().out
    assert printed.startswith(text.rstrip("\n"))


ABSURD = [
    "model.ssd.num_classes=1000000000",
    "model.ssd.image_resizer.fixed_shape_resizer.width=1000000",
    "model.ssd.post_processing.batch_non_max_suppression.max_total_detections=1000000000",
    "train_input_reader.max_number_of_boxes=1000000000",
]
IN_ALL = ABSURD[:3]
VERBS = {
    "check-config --no_build": ABSURD,
    "check-config": ABSURD,
    "train": ABSURD,
    "evaluate": IN_ALL,
    "export": IN_ALL,
    "check-data": ABSURD,
    "show-data": ABSURD,
}


@pytest.mark.parametrize("verb", VERBS)
def test_absurd_numbers(verb, capsys, tmp_path, monkeypatch):
    def build(*_: Any, **__: Any) -> None:
        raise AssertionError("something is built or read")

    monkeypatch.setattr(tf, "Graph", build)
    monkeypatch.setattr(tf.data, "Dataset", build)
    monkeypatch.chdir(tmp_path)  # check-data writes its report there
    path = tmp_path / "a.config"
    path.write_text(pipeline.format_pipeline(small_config()))
    model_dir = str(tmp_path / "model")
    arguments = {
        "train": ["--pipeline_config_path", str(path), "--model_dir", model_dir],
        "evaluate": ["--pipeline_config_path", str(path), "--checkpoint_dir", model_dir],
        "export": ["--pipeline_config_path", str(path), "--trained_checkpoint_prefix", model_dir,
                   "--output_directory", model_dir],
    }.get(verb, [str(path)])  # fmt: skip
    for assignment in VERBS[verb]:
        assert cli.main([*verb.split(), *arguments, "--set", assignment]) in (1, 2)
        field = assignment.partition("=")[0]
        text = _output(capsys)
        assert re.search(rf"error: {re.escape(field)}:? is 1,000,000", text), text
        assert "allowed are " in text, text
