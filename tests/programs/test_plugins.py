"""The recipes of docs/ as files of a user's project: trained, resumed, evaluated and exported."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tarfile
from typing import Any, List

import pytest

from estimator_det.config import pipeline
from estimator_det.errors import RunError
from estimator_det.programs.cloud import source_package
from inputs.datasets import shapes
from inputs.datasets.writer import encode_image
from model_fn.evaluation import history
from tests.conftest import TESTS
from tests.programs.forking import small_config
from tests.programs.test_submit import REMOTE

pytestmark = pytest.mark.slow

MODULES = ("brier", "negatives", "surplus", "short_net")
CHOICES = """
model { ssd {
  feature_extractor {
    type: "ssd_mobilenet_v1_short"
    depth_multiplier: 0.25
    custom_parameters { fields { key: "num_layers" value { number_value: 12 } } }
  }
  loss {
    classification_loss { custom {
      name: "brier_score" parameters { fields { key: "power" value { number_value: 1.5 } } }
    } }
    localization_loss { custom { name: "log_cosh" } }
  }
  post_processing { batch_non_max_suppression { score_threshold: 0.99 } }
} }
train_config { data_augmentation_options { custom {
  name: "random_negative" parameters { fields { key: "probability" value { number_value: 0.3 } } }
} } }
eval_config { metrics_set: "coco_detection_metrics" parameterized_metric { custom {
  name: "surplus_metrics" parameters { fields { key: "min_score" value { number_value: 0.0 } } }
} } }
"""


EXPORT_FORMAT = """
from exporters.formats.base import FORMATS, ExportFormat


@FORMATS.register("listing")
class Listing(ExportFormat):
    name = "listing"
    file = "listing.txt"

    def write(self, network, path):
        with open(path, "w") as file:
            file.write("\\n".join(each.name for each in network.session.graph.get_operations()))
        return True

    def recognizes(self, path):
        return False

    def detects(self, options):
        return False
"""


def write_recipes(folder: pathlib.Path) -> None:
    """Writes the module that each page describes, under the name that it gives."""
    for page in (TESTS.parent / "docs").glob("adding_*.md"):
        text = page.read_text()
        (name,) = set(re.findall(r"^`(\w+\.py)`", text, re.MULTILINE))
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text("\n\n".join(blocks))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with modules, records and a configuration that uses all of the modules."""
    folder = tmp_path_factory.mktemp("project")
    write_recipes(folder)
    config = pipeline.merge_text(pipeline.read_pipeline(small_config(folder, 2)), CHOICES)
    (folder / "mine.config").write_text(pipeline.format_pipeline(config))
    return folder


@pytest.fixture
def run(forker: Any) -> Any:
    """Runs `estimator-det` in a folder, in a process that has no plug-in yet."""

    def start(folder: pathlib.Path, *arguments: str, code: int = 0) -> str:
        program = (
            f"import os, sys\nos.chdir({str(folder)!r})\nfrom estimator_det.programs import cli\n"
            f"sys.exit(cli.main({list(arguments)!r}))"
        )
        process = forker.program(program)
        assert process.wait() == code, process.output()
        return str(process.output())

    return start


def imports(*names: str) -> List[str]:
    return [f"--import={name}" for name in names]


def test_train_resume_evaluate_export(project, run, forker, tmp_path):
    flags = ["--pipeline_config_path=mine.config", "--model_dir=run", *imports(*MODULES)]
    flags += ["--num_train_steps=1", "--mode=train"]
    first = forker.program(
        f"import os, sys\nos.chdir({str(project)!r})\n"
        "from estimator_det.programs import model_main\n"
        f"sys.exit(model_main.main({['model_main', *flags]!r}))"
    )
    assert first.wait() == 0, first.output()
    assert "registers no component" not in first.output()
    model_dir = project / "run"
    record = json.loads((model_dir / "plugins.json").read_text())
    assert record == {"modules": dict.fromkeys(MODULES, str(project))}

    # From another folder, and without --import: the run names its modules.
    again = run(tmp_path, "train", f"{project}/mine.config", f"--model_dir={model_dir}")
    assert "step 2/2" in again and (model_dir / "model.ckpt-2.index").exists()
    metrics = history.read(str(model_dir), "0")[-1].metrics
    assert metrics["Surplus/mean"] <= 8 and "DetectionBoxes_Precision/mAP" in metrics
    (tmp_path / "listing.py").write_text(EXPORT_FORMAT)
    export = [str(model_dir), "--format=listing", "--output_dir=exported", "--import=listing"]
    run(tmp_path, "export", *export)
    assert "MobilenetV1" in (tmp_path / "exported" / "listing.txt").read_text()
    record["modules"]["listing"] = str(tmp_path)
    assert json.loads((tmp_path / "exported" / "plugins.json").read_text()) == record
    # Where a module is missing, its name is.
    (project / "brier.py").rename(project / "brier.txt")
    try:
        refused = run(tmp_path, "evaluate", str(model_dir), code=2)
    finally:
        (project / "brier.txt").rename(project / "brier.py")
    assert "plugins.json: brier: there is no such module" in refused
    assert "Give --import brier in the folder that has it" in refused


EXTRACTORS = """
from estimator_det.compat import tf, tf1
from estimator_det.config import plugins
from estimator_det.extractors.ssd.registry import make_extractor
from estimator_det.extractors.two_stage import registry as two_stage
from estimator_det.protos import faster_rcnn_pb2, ssd_pb2

plugins.load(["short_net"])
config = ssd_pb2.SsdFeatureExtractor(type="ssd_mobilenet_v1_plain_fpn")
config.fpn.min_level, config.fpn.max_level, config.fpn.additional_layer_depth = 4, 6, 96
with tf.Graph().as_default():
    maps = make_extractor(config, is_training=True).extract(tf.zeros([2, 128, 128, 3]))
    assert [m.shape.as_list()[1:] for m in maps] == [[8, 8, 96], [4, 4, 96], [2, 2, 96]]
    names = {v.op.name for v in tf1.global_variables()}
    assert "MobilenetV1/fpn/bottom_up_Conv2d_14/weights" in names

config = faster_rcnn_pb2.FasterRcnnFeatureExtractor(type="faster_rcnn_mobilenet_v1_short")
config.custom_parameters["depth"] = 256
with tf.Graph().as_default():
    extractor = two_stage.make_extractor(config, is_training=True)
    (features,) = extractor.proposal_features(tf.zeros([2, 160, 128, 3]))
    assert features.shape == [2, 10, 8, 512]
    assert extractor.box_features(tf.zeros([6, 14, 14, 512])).shape == [6, 7, 7, 256]
    names = {v.op.name for v in tf1.global_variables()}
    assert "SecondStageFeatureExtractor/MobilenetV1/Conv2d_12/pointwise_weights" in names
"""


def test_extractors_with_a_pyramid_and_of_two_stages(project, forker):
    run = forker.program(f"import os; os.chdir({str(project)!r})\n{EXTRACTORS}")
    assert run.wait() == 0, run.output()


SETTINGS = [
    "model.ssd.loss.classification_loss.custom.name=brier",
    "model.ssd.feature_extractor.custom_parameters.size=1",
    "train_config.data_augmentation_options[-1].custom.parameters.probability=a",
    "eval_config.parameterized_metric[0].custom.parameters.min=1",
]


@pytest.mark.parametrize(
    ("change", "code", "messages"),
    [
        (["--import=brier"], 1, ["'random_negative' is not known", "MODULE; if a package does"]),
        (
            [*imports(*MODULES), *(f"--set={each}" for each in SETTINGS)],
            1,
            [
                "classification_loss.custom.name: 'brier' is not known",
                "did you mean 'brier_score'",
                "feature_extractor.custom_parameters.size: ssd_mobilenet_v1_short has no such",
                'custom.parameters.probability: is "a", but random_negative takes a number',
                "custom.parameters.min: surplus_metrics has no such parameter",
            ],
        ),
        (["--import=brierr"], 2, ["--import brierr: there is no such module", "'brier'"]),
    ],
)
def test_check_config_refuses(project, run, change, code, messages):
    output = run(project, "check-config", "mine.config", "--no_build", *change, code=code)
    for message in messages:
        assert message in output, output


def test_convert_by_a_converter_of_the_project(project, run, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(encode_image(shapes.make_image((0, 1)).pixels))
    (tmp_path / "boxes.txt").write_text("a.jpg 10 20 110 120 cat\nb.jpg 1 2\n")
    arguments = ["--to=tfrecord", f"--images={photos}", f"--annotations={tmp_path}/boxes.txt"]
    arguments += [f"--output_dir={tmp_path}/records", "--on_error=skip", "--jobs=2"]
    output = run(project, "convert", "--from=words", *arguments, "--import=words")
    assert "train: 1 image, 1 box" in output and "1 file, skipped" in output
    assert list((tmp_path / "records").glob("*.record*"))
    unknown = run(project, "convert", "--from=words", *arguments, code=2)
    assert "--from: the dataset format 'words' is not known" in unknown


def test_package_of_a_job_has_the_modules(project, source_distribution, tmp_path):
    package = source_package.get(
        str(source_distribution), tmp_path / "package.tar.gz", {"brier": str(project / "brier.py")}
    )
    source_package.check(package)
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path)
    (root,) = tmp_path.glob("estimator*det-*/")
    built = tmp_path / "built"
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", f"--build-lib={built}"]
    subprocess.run(command, cwd=root, check=True)
    assert (built / "brier.py").read_text() == (project / "brier.py").read_text()


def test_module_of_several_files_is_no_part_of_a_job(source_distribution, tmp_path):
    modules = {"parts.loss": "/project/parts/loss.py"}
    with pytest.raises(RunError, match=r"--import parts.loss: .* one file"):
        source_package.get(str(source_distribution), tmp_path / "package.tar.gz", modules)


def test_job_imports_the_modules(project, run, source_distribution, tmp_path):
    arguments = ["--job_dir=gs://bucket/run", "--region=us-central1", "--name=first"]
    arguments += [f"--set={text}" for text in REMOTE]
    arguments += [f"--package={source_distribution}", f"--output_dir={tmp_path}/job", "--dry_run"]
    printed = run(project, "submit", "mine.config", *arguments, *imports(*MODULES))
    assert "--import=brier" in printed
    with tarfile.open(next((tmp_path / "job").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {f"{name}.py" for name in MODULES}
    refused = run(project, "submit", "mine.config", *arguments, "--", "--import=brier", code=2)
    assert "--import, before the --" in refused
