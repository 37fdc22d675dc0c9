import pathlib
import platform
import runpy
import shlex
import shutil
import sys
from unittest import mock

import pytest

import estimator_det
from estimator_det import errors
from estimator_det.compat import tf, tf1
from estimator_det.config import plugins
from estimator_det.errors import UsageError
from estimator_det.programs import cli, console
from estimator_det.programs.verbs import evaluate
from model_fn.evaluation import calibration
from tests import small_extractor
from tests.inputs import examples
from tests.model_fn.checks.small import SMALL
from tests.processes import run_python

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ROOT / "estimator_det" / "configs" / "ssd_mobilenet_v1_shapes.config"
VERBS = ("demo", "import", "train", "evaluate", "export", "detect", "check-config", "sync")


@pytest.mark.parametrize(
    "program",
    [
        "from estimator_det.programs import cli; cli.main(['--help'])",
        "from estimator_det.programs import cli; cli.main(['--version'])",
        "from estimator_det.programs import model_main; model_main.main(['model_main', '--help'])",
        "import exporters; assert 'Detector' in exporters.__all__",
        "from estimator_det.programs.cloud import preparation, storage; "
        "storage.check_direction(['a'], 'gs://data/b')",
    ],
)
def test_nothing_heavy_is_imported_until_it_is_needed(program):
    heavy = ("tensorflow", "numpy", "google.auth", "google.api_core", "google.cloud.storage",
             "requests")  # fmt: skip
    end = f"import sys; print([name for name in {heavy} if name in sys.modules])"
    result = run_python("-c", f"{program}\n{end}")
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stderr


def run_module(module, monkeypatch, *arguments):
    """Exit code of `python -m module`, in this process."""
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__")
    return stop.value.code


def test_help_and_version(capsys, monkeypatch):
    assert run_module("estimator_det", monkeypatch) == console.EXIT_OK
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert console.EXIT_CODES_HELP.strip() in shown
    assert cli.main(["--version"]) == console.EXIT_OK
    assert capsys.readouterr().out.splitlines() == [
        f"estimator-det {estimator_det.__version__}",
        f"TensorFlow {tf.__version__}",
        f"Python {platform.python_version()}",
    ]


@pytest.mark.parametrize("name", [name for name in cli.VERBS if name != "demo"])
def test_examples_in_the_help_parse(name):
    verb = cli.load_verb(name)
    options = cli.make_parser([name]).parse_args([name, *verb.EXAMPLE.split()])
    assert options.run is verb.run


OTHER_ARGUMENTS = {
    "check-config": [],
    "check-data": [],
    "show-data": [],
    "train": ["--model_dir=r"],
    "evaluate": ["--model_dir=r"],
    "export": ["--trained_checkpoint_prefix=r", "--output_directory=e"],
    "replay": [],
}


@pytest.mark.parametrize("verb", OTHER_ARGUMENTS)
@pytest.mark.parametrize(
    "given",
    [
        ["nowhere.config"],
        ["--pipeline_config_path=nowhere.config"],
        ["nowhere.config", "--pipeline_config_path", "./nowhere.config"],
    ],
)
def test_every_verb_takes_the_configuration_both_ways(verb, given, capsys):
    folder = ["bad_step-1"] if verb == "replay" else []
    assert cli.main([verb, *folder, *given, *OTHER_ARGUMENTS[verb]]) == 3
    assert "no such configuration file: nowhere.config" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["f", "--steps", "5", "c"], ["f", "c", "--steps", "5"], ["--steps=5", "f", "c"]]
)
def test_arguments_come_before_and_after_options(arguments):
    options = cli.make_parser().parse_args(["replay", *arguments])
    assert (options.folder, options.config, options.steps) == ("f", "c", 5)


@pytest.mark.parametrize(
    ("verb", "runs_it"),
    [
        ("check-config", False),
        ("check-data", False),
        ("show-data", False),
        ("report", False),
        ("replay", True),
    ],
)
def test_checks_run_no_module_that_they_only_find(verb, runs_it, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_folders", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(CONFIG, "pipeline.config")
    pathlib.Path("plugins.json").write_text('{"modules": {"sent_here": "/proc/self/cwd"}}')
    pathlib.Path("sent_here.py").write_text("open('ran', 'w').close()\nraise SystemExit(0)")
    assert cli.main([verb, "."]) == 2
    error = capsys.readouterr().err
    assert ("start in their folder with --import sent_here" in error) != runs_it, error
    assert pathlib.Path("ran").exists() == runs_it


# A command, its exit code and a part of its error; CONFIG is a shipped configuration.
ERRORS = """
trian | 2 | unknown verb trian; did you mean 'train'?
train CONFIG --model_dir=r --num_train_steps=-5 | 2 | num_train_steps=-5: allowed are 0 to 4,294
train CONFIG | 2 | no folder for the run is given: give the folder of a project or run, as in
train none | 3 | there is no file or folder none; correct the path
train c --model_dir=r --rescale_schedule | 2 | needs --num_train_steps above
train CONFIG --model_dir=r --eval_every_steps=0 | 2 | --eval_every_steps: '0' is not allowed: give 1
train CONFIG --model_dir=r --keep_checkpoint_max=-1 | 2 | --keep_checkpoint_max: '-1' is not allowed
train --pipeline_config_path CONFIG --model_dir r | 2 | placeholder
check-config | 2 | no configuration is given
check-data a.config --pipeline_config_path=b.config | 2 | two configurations are given, a.config as
check-config nowhere.config | 3 | no such configuration file: nowhere.config
check-config CONFIG --set model.ssd.num_clases=3 | 2 | num_classes
check-config CONFIG --set train_config.batch_size=many | 2 | batch_size
check-config CONFIG --config_override 'modle {}' | 2 | model
evaluate --model_dir=r --timeout_secs=3 | 2 | requires --continuous
evaluate --model_dir none | 3 | --model_dir: there is no folder and no checkpoint none
evaluate none | 3 | there is no file or folder none
check-data . | 3 | there is no pipeline.config in the folder .: name the folder of a project or run;
detect --model none none.jpg | 3 | none.jpg
detect a.jpg b.jpg | 2 | no export is given: add its folder before the images
suggest a.jpg | 2 | add its folder before the images, as in suggest exported photos/
detect exported | 2 | give images, videos or folders of images beside the export exported
detect --model=m a.jpg --threshold=nan | 2 | between 0 and 1, or auto
detect --model=m a.jpg --min_score=-.1 | 2 | between 0 and 1, or auto
convert --from=detection_jsonl --to=tfrecord --min_score=1.5 | 2 | '1.5' is not a score: give a num
detect --model=m a.jpg --tiles=8 | 2 | '8' is no side of tiles: give 16 pixels or more
convert --from=coc --to=tfrecord --output_dir=o | 2 | did you mean 'coco'
export CONFIG --trained_checkpoint_prefix=x --output_directory=o --input_type=image_tensr | 2 | did
export CONFIG --output_dir=o --use_side_inputs=maybe | 2 | 'maybe' is neither true nor false
export CONFIG --output_dir=e | 2 | no checkpoint is given: add the folder
export none --output_dir=e | 3 | there is no file or folder none
demo --output_dir=x[1] | 2 | --output_dir x[1]: TensorFlow takes the [ for a part of a pattern
benchmark e --data=r --batch_sizes=1,x | 2 | must be whole numbers
"""


@pytest.mark.parametrize("row", ERRORS.strip("\n").splitlines())
def test_errors_have_exit_codes_and_no_traceback(row, capsys):
    command, code, message = row.split(" | ")
    arguments = shlex.split(command.replace("CONFIG", str(CONFIG)))
    assert cli.main(arguments) == int(code)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


# Commands, the first line of their error, and the help that the second line names.
WRONG = """
train my.config --model_dri r1 | unknown option --model_dri; did you mean '--model_dir'? | help_all
train my.config --model-dri=r1 | unknown option --model_dri; did you mean '--model_dir'? | help_all
train c --num_trian_step 5 | unknown option --num_trian_step; did you mean '--num_train_steps'? | help_all
check-config --config_overide=c | unknown option --config_overide; did you mean '--config_override'? | help
check-config --qqqqqq | unknown option --qqqqqq | help
check-config a b c | unknown arguments: b c | help
train my.config --model_dir | argument --model_dir: expected one argument | help_all
--versoin | unknown option --versoin; did you mean '--version'? | help
train my.config --warmup 3 | unknown option --warmup | help_all
train c --resume | --resume is an option of other trainers. Instead, remove it: a run in --model_dir resumes | help_all
export c --keypoint_label_map_path f | --keypoint_label_map_path is an option of other trainers. Instead, set model.center_net.keypoint_label_map_path, for example --set model.center_net.keypoint_label_map_path=FILE | help_all
train c --batch-size=8 | --batch_size is an option of other trainers. Instead, set train_config.batch_size, for example --set train_config.batch_size=8 | help_all
"""  # noqa: E501


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_wrong_arguments_take_two_lines(row, capsys):
    command, message, help_option = row.split(" | ")
    assert cli.main(command.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {message}"
    verb = command.split()[0].replace("--versoin", "")
    program = f"estimator-det {verb}".rstrip()
    assert second == f"{program} --{help_option} lists all {'options' if verb else 'verbs'}"


def test_patterns_that_the_shell_replaced_are_to_be_quoted(tmp_path, capsys):
    files = [str(tmp_path / f"eval.record-{i}") for i in range(2)]
    for path in files:
        open(path, "w").close()
    assert cli.main(["benchmark", "exported", "--data", *files]) == 2
    assert f"unknown arguments: {files[1]}; if they come from a pattern" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["evaluate", "--calibrate", "{run}"], {"calibrate": "function_approximation"}),
        (
            ["evaluate", "--calibrate", "sigmoid_calibration", "{run}"],
            {"calibrate": "sigmoid_calibration"},
        ),
        (["evaluate", "{run}", "--calibrate"], {"calibrate": "function_approximation"}),
        (["export", "--use_side_inputs", "{run}", "--output_dir=e"], {"use_side_inputs": True}),
        (
            ["export", "--use_side_inputs", "false", "{run}", "--output_dir=e"],
            {"use_side_inputs": False},
        ),
        (
            ["export", "--sample_images", "a", "--sample_images=b", "{run}", "--output_dir=e"],
            {"sample_images": ["a", "b"]},
        ),
        (
            ["import", "--calibrate", "a", "{run}", "--from=tfjs", "--output_dir=e"],
            {"calibrate": ["a"]},
        ),
    ],
)
def test_options_leave_a_path_after_them_to_the_verb(arguments, values, tmp_path):
    parsed = cli.make_parser().parse_args([text.format(run=tmp_path) for text in arguments])
    assert getattr(parsed, "config", None) or parsed.path == str(tmp_path)
    assert {name: getattr(parsed, name) for name in values} == values


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("train c --model_dir=r --checkpoint_every_n=7", {"save_checkpoints_steps": 7}),
        (
            "export --pipeline_config_path c --trained_checkpoint_dir r --output_directory e "
            "--ssd_use_regular_nms=True --ssd_add_postprocessing_op false --max_detections 10",
            {"trained_checkpoint_prefix": "r", "output_dir": "e", "use_regular_nms": True,
             "add_postprocessing_op": False, "max_detections": 10},
        ),
    ],
)  # fmt: skip
def test_flags_of_programs_of_the_tf2_line_are_taken(command, values):
    parsed = cli.make_parser().parse_args(command.split())
    assert {name: getattr(parsed, name) for name in values} == values


def test_calibrations_are_those_of_the_registry(capsys):
    assert set(evaluate.CALIBRATIONS) == set(calibration.FITS)
    assert cli.main(["evaluate", "--model_dir=r", "--calibrate=sigmoid"]) == 2
    assert "invalid choice: 'sigmoid' (choose from" in capsys.readouterr().err


def test_values_may_look_like_options():
    options = cli.make_parser().parse_args(["convert", "--from=coco", "--to=tfrecord",
        "--runner_options", "--project=p --region=r"])  # fmt: skip
    assert options.runner_options == "--project=p --region=r"


def test_evaluation_of_a_folder_without_a_run(tmp_path, capsys):
    assert cli.main(["evaluate", "--model_dir", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert f"there is no training run in {tmp_path}" in error and "pipeline_config_path" in error
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pipeline.config").touch()
    (tmp_path / "model.ckpt-5.index").touch()
    assert cli.main(["evaluate", str(tmp_path / "model.ckpt-5")]) == 2
    assert "model.ckpt-5 is a checkpoint: give the folder" in capsys.readouterr().err
    for command in (["evaluate", "--model_dir"], ["export", "--output_dir=o"], ["serve"]):
        assert cli.main([*command, str(tmp_path)]) == 3
        assert f"it holds {tmp_path / 'a'}" in capsys.readouterr().err


def _mended(tmp_path):
    """Overrides that give the shipped configuration real files."""
    label_map = tmp_path / "map.pbtxt"
    label_map.write_text("".join(f'item {{ id: {i} name: "{i}" }}\n' for i in range(1, 5)))
    record = tmp_path / "a.record"
    examples.write(record, [b"a record"])
    sets = []
    for reader in ("train_input_reader", "eval_input_reader[0]"):
        sets += ["--set", f"{reader}.label_map_path={label_map}"]
        sets += ["--set", f"{reader}.tf_record_input_reader.input_path[0]={record}"]
    return sets, record


def test_check_config_counts_problems(tmp_path, capsys, monkeypatch):
    small_extractor.use(monkeypatch)
    check = ["check-config", str(CONFIG), *(f"--set={text}" for text in SMALL)]
    assert cli.main([*check, "--no_build"]) == 1
    assert "4 errors" in capsys.readouterr().out
    sets, _ = _mended(tmp_path)
    assert cli.main([*check, *sets]) == 0
    text = capsys.readouterr().out
    assert "0 errors" in text
    assert "ssd_mobilenet_v1, 4 classes" in text


NOT_UTF8 = UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ModuleNotFoundError("x", name="PIL.Image"), 1, "pillow is not installed. Remedy: pip ins"),
        (MemoryError(), 1, "memory ran out (MemoryError). Free memory, or "),
        (NOT_UTF8, 2, "a\\udcff: a name has bytes that are not UTF-8"),
    ],
)
def test_errors_of_the_machine(error, code, text, capsys):
    assert console.run(mock.Mock(side_effect=error)) == code
    assert capsys.readouterr().err.startswith(f"error: {text}")


def test_loops_of_symbolic_links_are_named(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    loop = str(tmp_path / "loop")
    assert cli.main(["check-config", loop]) == 2
    assert f"{loop}: is a loop of symbolic links, not a file" in capsys.readouterr().err
    sets, _ = _mended(tmp_path)
    for field in ("label_map_path", "tf_record_input_reader.input_path[0]"):
        more = ["--set", f"train_input_reader.{field}={loop}", "--no_build"]
        assert cli.main(["check-config", str(CONFIG), *sets, *more]) == 1
        assert "loop of symbolic links" in capsys.readouterr().err


def test_missing_records_are_missing_inputs(tmp_path, capsys):
    sets, record = _mended(tmp_path)
    record.unlink()
    arguments = ["train", "--pipeline_config_path", str(CONFIG), "--model_dir", str(tmp_path / "m")]
    assert cli.main([*arguments, *sets]) == 3
    assert "no file matches" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no"), 2),
        (errors.ConfigError.at("a.b", "no", "go"), 2),
        (FileNotFoundError("no"), 3),
        (PermissionError(13, "Permission denied", "model.config"), 1),
        (OSError(28, "No space left on device"), 4),
        (OSError(30, "Read-only file system", "out.png"), 4),
        (errors.FolderInUseError("no"), 5),
        (errors.RunError("no"), 1),
        (ModuleNotFoundError("No module named 'PIL'", name="PIL"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code_of_an_error(error, code, capsys):
    def fail():
        raise error

    assert console.run(fail) == code


def test_a_program_may_change_its_process(monkeypatch):
    monkeypatch.setattr(estimator_det, "is_program", False)
    assert console.run(lambda: 1 + estimator_det.is_program) == 2


def test_faults_of_the_program_keep_their_traceback():
    def fail(error):
        raise error

    for bug in (KeyError("missing"), ValueError("wrong"), OSError("no file"), RuntimeError("no")):
        with pytest.raises(type(bug)):
            console.run(lambda bug=bug: fail(bug))


def test_failed_assertions_of_a_graph_are_told_as_they_were_meant():
    told = 'd\u00e4mlich.record: the record\'s [1, 2] is "bad".\nRemedy: none'
    with tf.Graph().as_default(), tf1.Session() as session:
        failing = tf.raw_ops.Assert(condition=False, data=["Record", told, [1, 2]])
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(failing)
    assert console.error_text(caught.value) == f"Record {told} 1 2"
