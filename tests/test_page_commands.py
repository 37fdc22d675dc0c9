"""The commands of all pages: each parses, and runs or has a reason why not."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import shlex
import subprocess
from typing import List

import pytest
from PIL import Image

from estimator_det.programs import cli, model_flags
from tests.conftest import ROOT
from tests.inputs import examples
from tests.programs.forking import small_config
from tests.programs.test_data_verbs import record
from tests.programs.test_plugins import write_recipes

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NUM_STEPS = 2  # of the run, in place of 2,000
SETTINGS = (
    "model.ssd.num_classes=2",
    "train_input_reader.tf_record_input_reader.input_path=[val.record-*]",
    "train_input_reader.label_map_path=map.pbtxt",
    "eval_input_reader[0].tf_record_input_reader.input_path=[val.record-*]",
    "eval_input_reader[0].label_map_path=map.pbtxt",
    "eval_input_reader[0].sample_1_of_n_examples=1",
)
CALIBRATION = """model { ssd { post_processing { calibration_config {
  sigmoid_calibration { sigmoid_parameters { a: -2 b: 1 } }
} } } }"""
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "text")  # languages; configurations, programs and outputs have others
COMMAND = re.compile(
    r"^ *(?:(?:TF_CONFIG=.*\" |docker run --rm )(?=estimator-det ))?(\S.*?)(?: > .*)?$",
    re.MULTILINE,
)
# Why a command does not run here: a pattern that begins it, and the reason.
LEFT_OUT = {
    r"estimator-det convert --from coco .* --masks ": "tests/inputs/datasets/converters read masks",
    r"estimator-det convert --from pascal_voc ": "test_tutorial.py runs it",
    r"estimator-det init --records records --hours 1 --output_dir project --model ": "downloads",
    r"estimator-det init --records records ": "test_tutorial.py runs it",
    r"estimator-det \S+ project/(run|pipeline\.config)": "test_tutorial.py runs it",
    r"estimator-det detect exported photos ": "test_tutorial.py runs it",
    r"estimator-det .*(animals|published|coco17_tpu-8|exported_coco) ?": "test_tutorial.py runs it",
    r"estimator-det evaluate .* --calibrate ": "test_evaluate_detections.py; needs trained scores",
    r"estimator-det train my\.config ": "test_distributed_docs.py runs it; `tpu` needs a TPU",
    r"estimator-det .*cranes": "needs labelled photographs",
    r"estimator-det demo ": "test_runs.py runs it",
    r"estimator-det train demo/": "takes minutes, after the demo",
    r"estimator-det benchmark ": "tests/exporters/benchmark runs it",
    r"estimator-det data-worker ": "test_distributed_docs.py runs it",
    r"estimator-det (submit|sync) ": "needs Google Cloud",
    r"estimator-det check-config my_old\.config --tpu ": "test_check_tpu.py runs it",
    r".* gs://": "needs Google Cloud",
    r".* --use_tpu ": "needs a TPU",
    r".* --rehearse_tpu ": "test_rehearsal.py trains with these flags",
    r"estimator-det export run --output_dir (exported|small|web) --format ": "needs converters",
    r"estimator-det \S+ .* drafts": "test_label_drafts.py runs it",
    r"estimator-det suggest ": "test_suggestions.py runs it",
    r"estimator-det report run --json": "test_report.py runs it",
    r"estimator-det serve ": "test_server.py starts it",
    r"estimator-det train ssd\.config --model_dir trial ": "as the one after it, for other steps",
    r"estimator-det export run --input_type ": "test_saved_model.py exports all input types",
    r"estimator-det detect exported/model\.tflite ": "needs the export before it",
    r"estimator-det import --from tfjs ": "needs a published model",
    r"estimator-det detect .* --runner ": "test_detect_shards.py runs it, with Apache Beam",
    r"estimator-det export imported ": "needs the import of a published model",
    r"estimator-det train pets\.config ": "needs the import of a published model",
    r"estimator-det convert .* photos\.json ": "test_examples.py cuts large images",
    r"estimator-det init --records tiles ": "needs large photographs",
    r"estimator-det init --from pascal_voc .* project$": "test_init.py converts; needs photographs",
    r"estimator-det (train|report) project$": "test_tutorial.py runs it, with all paths",
    r"estimator-det evaluate --model_dir project/run ": "test_tiles.py evaluates on tiles",
    r"make |\.venv/bin/python -m pytest |export ESTIMATOR": "the targets of .ci/run do it",
    r"pip |\. \.venv|python3(\.11)? -m venv|converters/": "`make test-dist` and others install",
    r"docker |edgetpu_compiler ": "test_container.py reads the Dockerfile; not here otherwise",
    r"gcloud |gsutil |sed |cp ": "needs Google Cloud",
    r"printf |curl ": "test_docs.py sends it, and test_server.py other requests",
    r"mkdir |python (draw_photos|run_export)\.py": "test_tutorial.py runs it",
    r"cluster=|task|wait|kill|\}": "test_distributed_docs.py runs it",
    r"(CONFIGS=.* |taskset .* python -m |python -m )benchmarks": "minutes to hours",
    r"apt-get |LD_PRELOAD=": "needs root; test_container.py has the allocator of the image",
    r"python -c ": "needs a GPU",
    r"--set ": "options of other commands",
}


def _commands() -> List[str]:
    """Each command once, in the order of the pages."""
    blocks = itertools.chain(*(BLOCK.findall(path.read_text()) for path in PAGES))
    joined = (re.sub(r" *\\\n *", " ", text) for language, text in blocks if language in SHELL)
    return list(dict.fromkeys(itertools.chain(*map(COMMAND.findall, joined))))


COMMANDS = _commands()
RUN = [each for each in COMMANDS if not any(re.match(pattern, each) for pattern in LEFT_OUT)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command):
    program, *arguments = shlex.split(command)
    if program == "estimator-det":
        assert {"--help", "--version"} & set(arguments) or cli._parse(arguments).run
    elif arguments[:2] == ["-m", "estimator_det.model_main"]:
        assert model_flags.parse(arguments[2:])["pipeline_config_path"].value
    else:
        assert command not in RUN, "why does no test run it?"
    sources = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    for options in re.findall(r"-m benchmarks\.\w+(.*)", command):
        assert all(f'"{option}"' in sources for option in re.findall(r"--\w+", options))


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_what_is_left_out_is_on_a_page(pattern):
    assert any(re.match(pattern, command) for command in COMMANDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The files that commands name, recipes among them."""
    folder = tmp_path_factory.mktemp("pages")
    write_recipes(folder)
    (folder / "photos").mkdir()
    Image.new("RGB", [60, 40]).save(folder / "photos" / "a.jpg")
    (folder / "boxes.txt").write_text("a.jpg 10 20 50 30 cat\n")
    examples.write(folder / "val.record-00000-of-00001", [record(f"{i}.jpg") for i in range(4)])
    (folder / "map.pbtxt").write_text('item { id: 1 name: "cat" } item { id: 2 name: "dog" }')
    box = {"bbox": [0, 0, 15, 20], "category_id": 1, "score": 0.9}
    (folder / "results.json").write_text(json.dumps([{"image_id": "1.jpg", **box}]))
    sides = {"ymin": 0, "xmin": 0, "ymax": 0.5, "xmax": 0.25}
    found = {"class_id": 1, "name": "cat", "score": 0.9, "box": sides}
    (folder / "detections").mkdir()
    (folder / "detections" / "detections.jsonl").write_text(
        json.dumps({"file": "photos/1.jpg", "detections": [found]})
    )
    (folder / "run" / "eval_0").mkdir(parents=True)
    (folder / "run" / "eval_0" / f"calibration-{NUM_STEPS}.pbtxt").write_text(CALIBRATION)
    pathlib.Path(small_config(folder, NUM_STEPS, *SETTINGS)).rename(folder / "ssd.config")
    return folder


@pytest.mark.slow
def test_the_other_commands_run(folder, forker):
    """In the order of the pages: `export` reads the run that `train` has written."""
    for command in RUN:
        command = command.replace("-2000", f"-{NUM_STEPS}")
        # What the shell makes of quotes and of `$(cat FILE)`.
        words = ["bash", "-euc", f"printf '%s\\0' {command}"]
        arguments = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
        program = f"""
import os, sys
os.chdir({str(folder)!r})
from estimator_det.programs import cli
from tests.programs.forking import simplify
simplify()
sys.exit(cli.main({arguments.stdout.split(chr(0))[1:-1]!r}))"""
        run = forker.program(program)
        assert run.wait() == 0, f"{command}\n{run.output()}"


@pytest.mark.slow
def test_the_python_page_runs(folder, forker):
    Image.new("RGB", [60, 40]).save(folder / "photo.jpg")
    page = (ROOT / "docs" / "python.md").read_text()
    page = re.sub("=(2000|100)", f"={NUM_STEPS}", page)
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    program = program.replace('"exported"', '"exported_by_python"').replace('"run', '"python_run')
    program = f"""
import os
os.chdir({str(folder)!r})
from tests.programs.forking import simplify
simplify()
{program}"""
    run = forker.program(program)
    assert run.wait() == 0, run.output()
