import subprocess
import sys

import pytest

from estimator_det import model_main
from estimator_det.config import pipeline
from estimator_det.config.text import ConfigError
from tests.programs.test_cli import CONFIG, ROOT

REFERENCE_FLAGS = [
    "model_dir",
    "pipeline_config_path",
    "num_train_steps",
    "eval_training_data",
    "sample_1_of_n_eval_examples",
    "sample_1_of_n_eval_on_train_examples",
    "checkpoint_dir",
    "run_once",
    "max_eval_retries",
    "use_tpu",
    "tpu_name",
    "tpu_zone",
    "gcp_project",
    "num_shards",
    "iterations_per_loop",
    "mode",
    "train_batch_size",
    "job-dir",
]


def _main(*arguments):
    return model_main.main(["model_main", *arguments])


def test_all_flags_of_the_reference_are_there():
    assert set(REFERENCE_FLAGS) <= set(model_main.define_flags())


def test_flags_parse():
    values = model_main.define_flags()
    values(
        ["model_main", "--job-dir=gs://b/run", "--use_tpu=false", "--run_once", "--num_shards=4"]
    )
    assert values["job-dir"].value == "gs://b/run"
    assert (values["use_tpu"].value, values["run_once"].value) == (False, True)
    assert values["num_shards"].value == 4


def test_job_dir_stands_in_for_model_dir():
    values = model_main.define_flags()
    values(["model_main", "--job-dir=run", "--pipeline_config_path=a.config"])
    model_main._check_flags(values, [])
    assert values["model_dir"].value == "run"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--model_dir is required"),
        (["--model_dir=m"], 2, "--pipeline_config_path is required"),
        (["--mdel_dir=m"], 2, "model_dir"),
        (["--num_train_steps=0"], 2, "num_train_steps"),
        (["--mode=trian"], 2, "mode"),
        (["--use_tpu=true"], 2, "--use_tpu requires --tpu_name"),
        (["--tpu_name=t"], 2, "--tpu_name requires --use_tpu"),
        (["stray"], 2, "stray"),
        (["--model_dir=m", "--pipeline_config_path=none.config"], 3, "none.config"),
        (["--model_dir=m", f"--pipeline_config_path={CONFIG}"], 2, "placeholder"),
        (["--model_dir=m", f"--pipeline_config_path={CONFIG}", "--run_once"], 2, "checkpoint_dir"),
    ],
)
def test_errors_have_exit_codes_and_no_traceback(arguments, code, message, capsys):
    assert _main(*arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_broken_configuration_is_told_by_line(tmp_path, capsys):
    path = tmp_path / "broken.config"
    path.write_text("model {\n  ssd {\n    num_clases: 3\n  }\n}\n")
    assert _main("--model_dir=m", f"--pipeline_config_path={path}") == 2
    error = capsys.readouterr().err
    assert f"{path}:3" in error
    assert "num_classes" in error


def test_help_as_a_module_imports_no_tensorflow():
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "estimator_det.model_main", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0
    assert all(f"--{name}\n" in result.stdout for name in REFERENCE_FLAGS)
    assert "tensorflow" not in result.stderr


def _flags(*arguments):
    values = model_main.define_flags()
    values(["model_main", "--model_dir=run", *arguments])
    return {name: values[name].value for name in values}


def test_what_the_flags_say_of_a_tpu(capsys):
    config = pipeline.apply_overrides(
        pipeline.read_pipeline(str(CONFIG)),
        [
            "model.ssd.inplace_batchnorm_update=true",
            "train_input_reader.label_map_path=labels.pbtxt",
            "train_input_reader.tf_record_input_reader.input_path=[train-*.record]",
            "eval_input_reader=[]",
        ],
    )
    assert model_main._on_tpu(config, _flags()) is None
    on_tpu = model_main._on_tpu(config, _flags("--rehearse_tpu", "--iterations_per_loop=5"))
    assert on_tpu.rehearses and on_tpu.iterations_per_loop == 5 and on_tpu.num_shards == 8
    assert "use_bfloat16: is false" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--model_dir: 'run' is not in Cloud Storage"):
        model_main._on_tpu(config, _flags("--use_tpu", "--tpu_name=mine"))
    with pytest.raises(ConfigError, match=r"--set model\.ssd\.inplace_batchnorm_update=true"):
        config.model.ssd.inplace_batchnorm_update = False
        model_main._on_tpu(config, _flags("--use_tpu", "--tpu_name=local"))
