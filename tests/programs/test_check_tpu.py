"""`check-config` with what concerns TPU."""

import pathlib
import re
import shlex

import pytest

from estimator_det.config import pipeline
from estimator_det.errors import error, warning
from estimator_det.programs import cli, demo, model_main
from model_fn.checks import graphs, tpu_graph, tpu_memory
from tests import small_extractor
from tests.model_fn.checks import small

CONFIG = pathlib.Path(demo.CONFIG_FILE)
FIT = CONFIG.parent / "ssd_mobilenet_v1_300x300.config"
# A model that is built in no time, without paths that are to be filled in.
BUILT_FAST = small.SMALL[1:]  # without the batch size
SMALL = [f"--set={text}" for text in (*BUILT_FAST, "model.ssd.inplace_batchnorm_update=true")]


@pytest.fixture
def built(monkeypatch):
    """The ordinary check of the graph passes at once."""
    found = graphs.Graphs(None, None, 1, 1, [])
    monkeypatch.setattr(graphs, "examine", lambda *_: found)


def _check(capsys, *arguments):
    status = cli.main(["check-config", *map(str, arguments)])
    return status, "".join(capsys.readouterr())


def test_placeholders_alone_are_no_error(capsys):
    # The label map that is to come may have the class.
    pets = "include_metrics_per_category: true super_categories { key: 'pet' value: 'cat' }"
    options = ("--tpu", "--no_build", f"--config_override=eval_config {{ {pets} }}")
    status, told = _check(capsys, FIT, *options, "--model-dir=gs://bucket/run")
    assert status == 0 and "0 errors, 0 warnings" in told
    assert told.count("  placeholder: ") == 5
    assert "error: " not in told and "advice: " not in told


def test_rules_are_told_with_their_edits(capsys):
    status, told = _check(capsys, CONFIG, "--tpu", "--no_build", "--num_shards=5")
    assert status == 1
    for line in (
        "on TPU:",
        "error: model.ssd.inplace_batchnorm_update: is false: ",
        "--set train_config.batch_size=25",
        "--set train_config.use_bfloat16=true",
    ):
        assert line in told
    # PATH_TO_BE_CONFIGURED is an error of the ordinary check, and told once.
    assert told.count("is still the placeholder") == 4 and "placeholder: " not in told


def test_cores_and_files(capsys):
    paths = ["--model_dir=run", "--set=train_config.fine_tune_checkpoint=m.ckpt"]
    status, told = _check(capsys, FIT, "--tpu", "--no_build", *paths)
    assert status == 1
    assert "error: --model_dir: 'run' is not in Cloud Storage" in told
    told = _check(capsys, FIT, "--tpu", "--no_build", "--local_files", *paths)[1]
    assert "Cloud Storage" not in told
    status, told = _check(capsys, FIT, "--tpu", "--no_build", "--tpu_inference")
    assert status == 0 and "warning: " in told and "static_kernel" in told
    assert cli.main(["check-config", str(FIT), "--tpu", "--num_shards=0"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no_build", "--compile"], "--no_build and --compile exclude each other"),
        (["--no_build", "--list_quantized"], "--no_build and --list_quantized exclude"),
        (["--tpu", "--no_xla"], "--no_xla requires --compile"),
        (["--compile", "--num_shards=4"], "--num_shards requires --tpu or --fix"),
        (["--tpu_inference"], "--tpu_inference requires --tpu or --fix"),
    ],
)
def test_options_without_effect_are_refused(capsys, options, message):
    status, told = _check(capsys, FIT, *options)
    assert status == 2 and message in told


def test_fix_writes_and_shows_the_edits(tmp_path, capsys):
    fixed = tmp_path / "fixed.config"
    status, told = _check(
        capsys,
        FIT,
        "--no_build",
        f"--fix={fixed}",
        "--set=model.ssd.inplace_batchnorm_update=false",
        "--set=model.ssd.loss.hard_example_miner={}",
    )
    assert status == 1, "the miner is left to a person"
    assert f"--- {FIT}\n+++ {fixed}\n" in told
    assert "\n-    inplace_batchnorm_update: false\n" in told
    assert "\n+    inplace_batchnorm_update: true\n" in told
    assert "edited: model.ssd.inplace_batchnorm_update: " in told
    assert f"written: {fixed}; 1 problem fixed, 1 left" in told
    assert "error: model.ssd.loss.hard_example_miner: " in told
    assert "1 error, 0 warnings" in told
    text = fixed.read_text()
    heading = "# estimator-det check-config --fix\n" + FIT.read_text()[:200]
    assert text.startswith(heading), "the heading stays"
    config = pipeline.parse_pipeline(text)
    assert config.model.ssd.inplace_batchnorm_update
    assert config.model.ssd.loss.HasField("hard_example_miner")
    told = _check(capsys, FIT, "--no_build", f"--fix={fixed}")[1]
    assert "no edit is safe" in told


def test_memory_of_a_core(capsys, monkeypatch, built):
    small_extractor.use(monkeypatch)
    monkeypatch.setattr(tpu_memory, "CORE_BYTES", {"v1": 1 << 20, "v9": 1 << 34})
    told = _check(capsys, CONFIG, "--tpu", *SMALL)[1]
    assert "GiB a core at 3 images each" in told
    assert "v1  (0 GiB): 0 images a core, a batch of 0 on 8 cores; this batch does not" in told
    assert "v9  (16 GiB): " in told
    block = tpu_memory.TensorGroup((3, 1 << 20), 4, False)
    needed = tpu_memory.CoreMemory(0, 0, [block], None, [], images=3)
    monkeypatch.setattr(tpu_memory, "estimate", lambda config, images: needed)
    monkeypatch.setattr(tpu_memory, "CORE_BYTES", {"v1": 1 << 20})
    told = _check(capsys, CONFIG, "--tpu", *SMALL)[1]
    assert "warning: train_config.batch_size: 3 images do not fit" in told


def test_what_cannot_be_built_is_told_once(capsys):
    status, told = _check(
        capsys, CONFIG, "--tpu", "--compile", *SMALL, "--set=model.ssd.feature_extractor.type=none"
    )
    assert status == 1 and told.count("'none' is not known") == 1
    assert "TPU memory" not in told and "TPU graph" not in told


@pytest.mark.parametrize("no_xla", [False, True])
def test_compile_reports_what_it_finds(capsys, monkeypatch, built, no_xla):
    asked = []

    def compile_check(config, *, xla):
        asked.append(xla)
        findings = [error("model.a", "x has no kernel", "y"), warning("model.b", "z", "w")]
        return findings, 1234

    monkeypatch.setattr(tpu_graph, "compile_check", compile_check)
    status, told = _check(capsys, CONFIG, "--compile", *SMALL, *["--no_xla"] * no_xla)
    assert status == 1
    assert "TPU graph:  1234 operations on a core, 1 problem, 0 s" in told
    assert "\nerror: model.a: x has no kernel. Remedy: y\n" in told
    assert "TPU memory" not in told, "that is --tpu"
    assert asked == [not no_xla]


# Those for TPU.
SHIPPED = sorted(path for path in CONFIG.parent.glob("ssd_*.config") if path != CONFIG)


def _commands(text):
    """Command lines of a heading, with continued lines joined."""
    joined = re.sub(r"\\\n[# ]*", " ", text)
    return re.findall(r"^#? *((?:estimator-det|python -m estimator_det).*)$", joined, re.MULTILINE)


@pytest.mark.parametrize("page", SHIPPED, ids=lambda path: path.name)
def test_printed_commands_are_understood(page):
    commands = _commands(page.read_text())
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(command)
        if words[0] == "estimator-det":
            assert cli.make_parser().parse_args(words[1:]).run
        else:
            values = model_main.define_flags()
            assert words[:3] == ["python", "-m", "estimator_det.model_main"]
            assert values(words[2:]) == ["estimator_det.model_main"]
            assert values["model_dir"].value and values["pipeline_config_path"].value
