"""Help, completion and results for other programs, of every verb."""

import argparse
import json
import pathlib
import re

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import cli, console, other_trainers
from estimator_det.programs.verbs import base, train
from tests.programs.test_cli import CONFIG


def test_every_help_has_one_notation_of_defaults_and_of_values():
    actions = [
        (name, parser, each) for name, parser in _parsers().items() for each in parser._actions
    ]
    for name, parser, action in actions:
        if action.help == argparse.SUPPRESS or not action.option_strings:
            continue
        text = parser._get_formatter()._expand_help(action)
        others = re.sub(r"\(default: [^)]+\)|defaults|serving_default", "", text)
        assert "default" not in others.lower(), f"{name} {action.dest}: {text}"
        if action.default not in (None, False, "", [], argparse.SUPPRESS):
            assert "(default: " in text or action.nargs == "?", f"{name} {action.dest}: {text}"
        shown = parser._get_formatter()._format_args(
            action, parser._get_formatter()._get_default_metavar_for_optional(action)
        )
        assert action.dest.upper() not in shown or "_" not in action.dest, shown


def test_help_is_short_and_grouped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["train", "-h"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 44 and "--num_train_steps N " in short
    assert "--tpu_zone" not in short and "--help_all" in short
    for command in (["train", "--help_all"], ["help", "report"]):
        assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "--tpu_zone ZONE" in shown and "usage: estimator-det report" in shown
    assert cli.main(["help"]) == 0
    headings = re.findall(r"^(\w+):$", capsys.readouterr().out, re.MULTILINE)
    assert headings[1:-1] == list(cli.GROUPS)


def test_results_for_programs_and_for_scripts(capsys, tmp_path):
    for verb in ("init", "pretrained"):
        assert cli.main([verb, "--list", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) > 10
    assert cli.main(["check-config", str(CONFIG), "--no_build", "--json", "--print"]) == 1
    printed, errors = capsys.readouterr()
    document = json.loads(printed)
    assert pipeline.parse_pipeline(document["config"]).train_config.batch_size
    problems = document["problems"]
    assert [each["severity"] for each in problems].count("error") == errors.count("error: ") == 4
    assert cli.main(["info", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (
        about["packages"]["tensorflow"] == tf.__version__
        and "CPU:0" in about["devices"]
        and about["cpus"]
    )
    assert cli.main(["pretrained", "--list", "--quiet"]) == 0
    assert "ssd_mobilenet_v2_coco" in capsys.readouterr().out


def test_completion_knows_verbs_and_options(capsys, monkeypatch):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert " check-config " in script and "--num_train_steps" in script
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["completion", "bash"]) == 2
    assert "run pip install 'estimator-det[completion]'" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["project", "project/run"])
def test_training_finds_the_run_of_a_project(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("project/run").mkdir(parents=True)
    pathlib.Path("project/run/checkpoint").touch()
    assert train._folder_of_run(folder) == base.run_folder(folder) == "project/run"


REMEDIES = [
    (program, name, remedy)
    for program, remedies in other_trainers.REMEDIES.items()
    for name, remedy in remedies.items()
]


@pytest.mark.parametrize(
    ("program", "remedy"), sorted({(program, remedy) for program, _, remedy in REMEDIES})
)
def test_what_replaces_options_of_other_trainers_exists(program, remedy):
    parsers = _parsers()
    (verb,) = re.findall(r"estimator-det (\w+)", remedy) or [program]
    if verb == "model_main":
        verb = "train"
    assert set(re.findall(r"--\w+", remedy)) <= set(parsers[verb]._option_string_actions)
    config = pipeline.read_pipeline(str(CONFIG))
    for text in re.findall(r"--set (\S+=\S+)", remedy):
        pipeline.apply_overrides(config, [text.replace("=N", "=3")])  # or an error


def test_no_option_of_ours_is_refused_as_another_trainer_s():
    parsers = _parsers()
    taken = [
        (program, name)
        for program, name, _ in REMEDIES
        if program in parsers and f"--{name}" in parsers[program]._option_string_actions
    ]
    assert not taken


def _parsers():
    """The parser of each verb."""
    actions = cli.make_parser()._actions
    (verbs,) = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    return verbs.choices


def test_main_metrics_are_printed_and_all_with_verbose(capsys):
    small, precision = "X_Precision/mAP (small)", "X_Precision/mAP"
    metrics = {small: -1.0, precision: 0.5, "X_Recall/AR@100": -1.0, "global_step": 20.0}
    console.say_metrics("title", metrics)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "title"
    assert [line.split() for line in lines[:3]] == [
        [precision, "0.5000"],
        ["X_Recall/AR@100", "no", "such", "objects"],
        ["global_step", "20"],
    ]
    assert lines[3:] == [
        "  in the event files: 1 more; train and evaluate print them with --verbose"
    ]
    console.say_metrics("title", metrics, verbose=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(metrics)
