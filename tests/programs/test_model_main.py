import json
import logging
import os
import sys

import pytest

from estimator_det.config import pipeline
from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import cli, console, model_flags, model_main
from tests.programs.test_cli import CONFIG, run_module

REFERENCE_FLAGS = """
    model_dir pipeline_config_path num_train_steps eval_training_data sample_1_of_n_eval_examples
    sample_1_of_n_eval_on_train_examples checkpoint_dir run_once max_eval_retries use_tpu tpu_name
    tpu_zone gcp_project num_shards iterations_per_loop mode train_batch_size job-dir
    eval_on_train_data eval_timeout num_workers checkpoint_every_n record_summaries
"""


def _main(*arguments):
    return model_main.main(["model_main", *arguments])


def test_model_dir_of_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("AIP_MODEL_DIR", "gs://b/model/")
    monkeypatch.setenv("AIP_CHECKPOINT_DIR", "gs://b/checkpoints/")
    values = model_flags.parse(["--pipeline_config_path=a.config"])
    assert values["model_dir"].value == "gs://b/model"
    notes = capsys.readouterr().err
    assert "model_dir is gs://b/model, from AIP_MODEL_DIR" in notes
    assert "AIP_CHECKPOINT_DIR=gs://b/checkpoints has no effect" in notes


@pytest.mark.parametrize(
    ("log_dir", "task", "copies"),
    [
        ("{}/logs/", "", True),
        ("{}/run/", "", False),
        ("", "", False),
        ("{}/logs/", "chief", True),
        ("{}/logs/", "worker", False),
    ],
)
def test_tensorboard_of_the_environment(monkeypatch, tmp_path, capsys, log_dir, task, copies):
    run = tmp_path / "run"
    run.mkdir()
    (run / "events.out.tfevents.1").write_text("events")
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", log_dir.format(tmp_path))
    if task:
        cluster = {"chief": ["a:1"], "worker": ["b:1"]}
        settings = {"cluster": cluster, "task": {"type": task, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(settings))
    with model_main._copied_events(str(run)):
        pass
    assert (tmp_path / "logs" / "events.out.tfevents.1").exists() == copies
    assert ("event files are copied to" in capsys.readouterr().err) == copies


@pytest.mark.parametrize(
    ("variable", "flags", "is_json"),
    [
        ("CLOUD_ML_JOB_ID", [], True),
        ("CLOUD_ML_JOB_ID", ["--log_format=text"], False),
        ("", ["--log_format=json"], True),
        ("", [], False),
    ],
)
def test_log_format(monkeypatch, capsys, variable, flags, is_json):
    monkeypatch.setattr(printing._Format, "is_json", not is_json)
    if variable:
        monkeypatch.setenv(variable, "job")
    arguments = ["--model_dir=m", "--pipeline_config_path=none.config", *flags]
    assert _main(*arguments) == 3
    if not variable:
        assert cli.main(["train", *arguments]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (1 if variable else 2)
    for line in lines:
        assert line.startswith('{"severity": "ERROR", "message": "error: no such') == is_json
        assert line.startswith("error: no such configuration") == (not is_json)


def test_flags_that_cannot_be_parsed_are_json_in_a_job(monkeypatch, capsys):
    monkeypatch.setattr(printing._Format, "is_json", False)
    monkeypatch.setenv("CLOUD_ML_JOB_ID", "job")
    assert _main("--mdel_dir=m") == 2
    entry = json.loads(capsys.readouterr().err)
    assert entry["severity"] == "ERROR" and "mdel_dir" in entry["message"]


def test_a_bug_in_a_job_is_one_entry(monkeypatch, capsys):
    monkeypatch.setattr(printing._Format, "is_json", True)

    def fail():
        raise KeyError("a bug")

    assert console.run(fail) == console.EXIT_FAILED
    entry = json.loads(capsys.readouterr().err)
    assert entry["severity"] == "CRITICAL"
    assert entry["message"].startswith("Traceback") and "KeyError: 'a bug'" in entry["message"]


EVALUATION = ("--model_dir=m", "--pipeline_config_path=c", "--checkpoint_dir=m")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--model_dir is required"),
        (["--model_dir=m"], 2, "--pipeline_config_path is required"),
        (["--mdel_dir=m"], 2, "model_dir"),
        (["--num_train_steps=0"], 2, "num_train_steps"),
        (["--mode=trian"], 2, "mode"),
        (["--set", "train_config.batch_size=8"], 2, "or by --config_override 'train_config {"),
        (["--use_tpu=true"], 2, "--use_tpu requires --tpu_name"),
        (["--tpu_name=t"], 2, "--tpu_name requires --use_tpu"),
        (["--use_tpu", "--rehearse_tpu"], 2, "--use_tpu and --rehearse_tpu exclude each other"),
        (["--num_workers=2"], 2, "--num_workers starts no machines: describe them in the TF_CON"),
        (["stray"], 2, "stray"),
        (["--model_dir=m", "--pipeline_config_path=none.config"], 3, "none.config"),
        (["--model_dir=m", f"--pipeline_config_path={CONFIG}"], 2, "placeholder"),
        (["--model_dir=m", f"--pipeline_config_path={CONFIG}", "--run_once"], 2, "checkpoint_dir"),
        ([*EVALUATION, "--mode=train"], 2, "evaluates without training, --mode=train trains"),
        ([*EVALUATION, "--mode=train_and_eval"], 2, "--mode=train_and_eval trains"),
    ],
)
def test_errors_have_exit_codes_and_no_traceback(arguments, code, message, capsys, no_tpu):
    assert _main(*arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_help_as_a_module(monkeypatch, capsys):
    assert run_module("estimator_det.model_main", monkeypatch, "--help") == console.EXIT_OK
    shown = capsys.readouterr().out
    assert all(f"--{name}\n" in shown for name in REFERENCE_FLAGS.split())


@pytest.fixture
def log_levels(monkeypatch):
    """Collects the level of the log; restores the levels of libraries."""
    levels = []
    loggers = [logging.getLogger(name) for name in ("tensorflow", "absl")]
    before = [logger.level for logger in loggers]
    monkeypatch.setattr(logging, "basicConfig", lambda **options: levels.append(options["level"]))
    monkeypatch.setattr(console, "run", lambda body: 0)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    yield levels
    for logger, level in zip(loggers, before):
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("arguments", "level", "of_libraries", "native"),
    [
        ([], logging.INFO, logging.ERROR, "3"),
        (["--alsologtostderr"], logging.INFO, logging.INFO, "0"),
        (["--logtostderr", "-v", "-1"], logging.WARNING, logging.WARNING, "1"),
        (["--verbosity=1"], logging.DEBUG, logging.ERROR, "3"),
        (["--v=1", "--logtostderr"], logging.DEBUG, logging.DEBUG, "0"),
        (["-v=-3"], logging.CRITICAL, logging.CRITICAL, "3"),
        (["--noalsologtostderr", "--verbosity=-2"], logging.ERROR, logging.ERROR, "3"),
    ],
)
def test_flags_of_absl_choose_what_is_logged(log_levels, arguments, level, of_libraries, native):
    assert _main("--model_dir=m", "--pipeline_config_path=c", *arguments) == 0
    assert log_levels == [level]
    assert logging.getLogger("tensorflow").level == of_libraries
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == native


@pytest.mark.parametrize("main", [_main, lambda *arguments: cli.main(list(arguments))])
def test_help_into_a_closed_pipe(main, monkeypatch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main("--help") == 0
        console.print_line("after that")  # and nothing is left that fails when the file is closed


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--eval_timeout_secs=5", "--max_eval_retries=2"], ["eval_timeout_secs", "max_eval_r"]),
        (["--mode=train", "--eval_training_data"], ["eval_training_data"]),
        (["--mode=train", "--eval_on_train_data"], ["eval_training_data"]),
        (["--eval_timeout=5", "--norecord_summaries"], ["eval_timeout_secs", "record_summaries"]),
        (["--checkpoint_dir=m", "--checkpoint_every_n=2"], ["checkpoint_every_n"]),
        (["--checkpoint_dir=m", "--precision=mixed_bfloat16"], ["precision"]),
        (["--checkpoint_dir=m", "--precision=bfloat16_convolutions"], []),
        (["--num_workers=1", "--record_summaries", "--checkpoint_every_n=2"], []),
        (["--checkpoint_dir=m", "--train_batch_size=2", "--use_tpu"], ["train_batch", "use_tpu"]),
        (["--mode=eval", "--run_once", "--eval_timeout_secs=5"], ["eval_timeout_secs"]),
        (["--mode=eval", "--eval_timeout_secs=5", "--train_batch_size=2"], ["train_batch_size"]),
        (["--eval_training_data", "--sample_1_of_n_eval_examples=2"], []),
        (
            ["--mode=eval", "--eval_training_data", "--sample_1_of_n_eval_examples=2"],
            ["sample_1_of_n_eval_examples"],
        ),
        (["--sample_1_of_n_eval_on_train_examples=2"], ["sample_1_of_n_eval_on_train_examples"]),
        (["--mode=eval", "--run_once", "--num_train_steps=2"], ["num_train_steps"]),
        (["--max_eval_retries=0", "--use_tpu=false"], []),
    ],
)
def test_flags_without_effect_are_reported(log_levels, arguments, unused, capsys):
    assert _main("--model_dir=m", "--pipeline_config_path=c", *arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(unused)
    for line, name in zip(sorted(lines), sorted(unused)):
        assert line.startswith(f"--{name}") and line.endswith("has no effect on this run")


@pytest.mark.parametrize(
    ("environment", "flags", "expected"),
    [
        ({"TPU_NAME": "mine"}, [], ("mine", None, None)),
        ({"TPU_NAME": "mine"}, ["--tpu_name=other", "--tpu_zone=z"], ("other", "z", None)),
        (
            {"TPU_CONFIG": '{"tpu_node_name": "node", "zone": "z", "project": "p"}'},
            ["--gcp_project=mine"],
            ("node", "z", "mine"),
        ),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "10.0.0.2:8470, grpc://b:1,", "TPU_NAME": "mine"},
            [],
            ("grpc://10.0.0.2:8470,grpc://b:1", None, None),
        ),
    ],
)
def test_the_tpu_of_the_environment(environment, flags, expected, monkeypatch, no_tpu):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    values = model_flags.parse(["--use_tpu", "--model_dir=m", "--pipeline_config_path=c", *flags])
    names = ("tpu_name", "tpu_zone", "gcp_project")
    assert tuple(values[name].value for name in names) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "has no tpu_node_name"), ("{}", "has no tpu_node_name")],
)
def test_a_broken_tpu_config_is_a_usage_error(text, message, monkeypatch, capsys, no_tpu):
    monkeypatch.setenv("TPU_CONFIG", text)
    assert _main("--use_tpu", "--model_dir=m", "--pipeline_config_path=c") == 2
    assert f"TPU_CONFIG {message}" in capsys.readouterr().err


def _flags(*arguments):
    return model_flags.parse(
        ["--model_dir=run", "--pipeline_config_path=c", *arguments]
    ).flag_values_dict()


def test_flags_of_the_tf2_line_have_the_effect_of_ours():
    flag = _flags("--eval_on_train_data", "--checkpoint_every_n=7", "--eval_timeout=5")
    assert flag["eval_timeout_secs"] == 5
    options = model_main._train_options(flag)
    assert options.evaluation.on_training_data and options.checkpoints.steps == 7


def test_what_the_flags_say_of_a_tpu(capsys, monkeypatch):
    config = pipeline.apply_overrides(
        pipeline.read_pipeline(str(CONFIG)),
        [
            "model.ssd.inplace_batchnorm_update=true",
            "train_input_reader.label_map_path=labels.pbtxt",
            "train_input_reader.tf_record_input_reader.input_path=[train-*.record]",
            "eval_input_reader=[]",
        ],
    )

    def check(*arguments):
        options = model_main._train_options(_flags(*arguments))
        console.check_training(config, "run", options)
        return options.tpu

    monkeypatch.setattr(console, "check_config", lambda *_, **__: None)
    assert check() is None
    tpu = check("--rehearse_tpu", "--iterations_per_loop=5")
    assert tpu.rehearses and tpu.iterations_per_loop == 5 and tpu.num_shards == 8
    assert "use_bfloat16: is false" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--model_dir: 'run' is not in Cloud Storage"):
        check("--use_tpu", "--tpu_name=mine")
    with pytest.raises(UsageError, match=r"--set model\.ssd\.inplace_batchnorm_update=true"):
        config.model.ssd.inplace_batchnorm_update = False
        check("--use_tpu", "--tpu_name=local")
