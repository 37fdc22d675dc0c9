import os

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.errors import RunError
from estimator_det.programs.cloud import rehearsal
from estimator_det.programs.cloud.jobs import TPUS, MachinePool
from inputs.records import stream
from tests.cloud.some_job import job
from tests.inputs.examples import write
from tests.programs.test_cli import CONFIG


def _write(path, count, options=""):
    write(path, [f"{path.name} {index}".encode() for index in range(count)], options)


def _config(*paths, eval_path):
    return pipeline.apply_overrides(
        pipeline.read_pipeline(str(CONFIG)),
        [
            f"train_input_reader.tf_record_input_reader.input_path=[{','.join(paths)}]",
            f"eval_input_reader.tf_record_input_reader.input_path=[{eval_path}]",
        ],
    )


def _records(path):
    return [record.numpy() for record in tf.data.TFRecordDataset(path)]


def test_the_first_records_of_each_path_are_copied(tmp_path):
    for name in ("a-0", "a-1", "b"):
        _write(tmp_path / name, 5)
    _write(tmp_path / "e.gz", 2, "GZIP")
    config = _config(f"{tmp_path}/a-*", f"{tmp_path}/b", eval_path=f"{tmp_path}/e.gz")
    short = rehearsal.first_records(config, tmp_path / "records", 3)
    first, second = stream.input_patterns(short.train_input_reader)
    assert _records(first) == [b"a-0 0", b"a-0 1", b"a-0 2"]
    assert _records(second) == [b"b 0", b"b 1", b"b 2"]
    (third,) = stream.input_patterns(short.eval_input_reader[0])
    assert _records(third) == [b"e.gz 0", b"e.gz 1"]
    assert not set("[]*?") & set(first + second + third), "patterns match other files"
    assert list(config.train_input_reader.tf_record_input_reader.input_path)[1] == f"{tmp_path}/b"


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "a", 1)
    config = _config("a", eval_path="a")
    config.train_input_reader.label_map_path = "map.pbtxt"
    config.eval_input_reader[0].label_map_path = "gs://bucket/map.pbtxt"
    short = rehearsal.first_records(config, tmp_path / "records", 1)
    assert short.train_input_reader.label_map_path == f"{tmp_path}/map.pbtxt"
    assert short.eval_input_reader[0].label_map_path == "gs://bucket/map.pbtxt"
    assert _records(short.train_input_reader.tf_record_input_reader.input_path[0]) == [b"a 0"]


def test_an_empty_record_file_is_named(tmp_path):
    _write(tmp_path / "a", 0)
    with pytest.raises(RunError, match=f"{tmp_path}/a: the file has no records"):
        rehearsal.first_records(
            _config(f"{tmp_path}/a", eval_path=f"{tmp_path}/a"), tmp_path / "records", 3
        )


def test_folders_whose_names_only_begin_like_that_of_the_job_stay():
    flags = ("--a=gs://bucket/run2/x", "--b=gs://bucket/run,gs://bucket/run/y")
    arguments = rehearsal._arguments(job(flags=flags), "c", "/w/output", 1)
    assert arguments[2:4] == ["--a=gs://bucket/run2/x", "--b=/w/output,/w/output/y"]


def test_a_tpu_is_rehearsed_here(capsys):
    flags = ("--use_tpu", "--tpu_name=local", "--num_shards=8")
    one = job(pools=(MachinePool("chief", TPUS["v3-8"], 1),), flags=flags)
    arguments = rehearsal._arguments(one, "c", "o", 1)
    assert arguments[2:] == ["--rehearse_tpu", *flags[1:], "--num_train_steps=1"]
    assert "--use_tpu is replaced by --rehearse_tpu" in capsys.readouterr().out


def test_paths_with_quotes_and_blanks(tmp_path):
    _write(tmp_path / "a ", 1)
    config = pipeline.set_values(
        _config("x", eval_path="x"),
        [
            (f"{reader}.tf_record_input_reader.input_path[0]", str(tmp_path / "a "))
            for reader in ("train_input_reader", "eval_input_reader[0]")
        ],
    )
    config.train_input_reader.label_map_path = "'labels "
    short = rehearsal.first_records(config, tmp_path / "records", 1)
    assert short.train_input_reader.label_map_path == os.path.abspath("'labels ")
    assert _records(*stream.input_patterns(short.train_input_reader)) == [b"a  0"]
