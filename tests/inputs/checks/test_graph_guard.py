from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import numpy as np
import pytest

import inputs
from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from tests.inputs.examples import example, write
from tests.inputs.test_pipeline import preprocess_of, reading, records_with_boxes


def _dataset(config: Any, **options: Any) -> tf.data.Dataset:
    return inputs.create_train_input_fn(config, preprocess_of(config), 1, **options)()


def _batches(dataset: tf.data.Dataset, count: int) -> List[Dict[str, np.ndarray]]:
    return [{**features, **labels} for features, labels in dataset.take(count).as_numpy_iterator()]


def test_no_operation_of_python_in_the_graph(tmp_path: pathlib.Path) -> None:
    config = reading(tmp_path, records_with_boxes(4))
    kinds = {}
    for runs_elsewhere in (False, True):
        with tf.Graph().as_default() as graph:
            _dataset(config, runs_elsewhere=runs_elsewhere)
            functions = graph.as_graph_def().library.function
            kinds[runs_elsewhere] = {node.op for one in functions for node in one.node_def}
    assert "PyFunc" in kinds[False] or "EagerPyFunc" in kinds[False]
    assert not {"PyFunc", "EagerPyFunc", "PyFuncStateless"} & kinds[True]


def test_faults_end_the_run(tmp_path: pathlib.Path) -> None:
    config = reading(tmp_path, [*records_with_boxes(2), b"no record at all"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        _batches(_dataset(config, runs_elsewhere=True), 4)
    path = pathlib.Path(config.train_input_reader.tf_record_input_reader.input_path[0])
    whole = write(path, records_with_boxes(4))
    path.write_bytes(pathlib.Path(whole).read_bytes()[:-3])
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"record 3.*damaged_record: the frame or checksum of a record",
    ):
        _batches(_dataset(config, runs_elsewhere=True), 4)


def test_compressed_files_are_rejected(tmp_path: pathlib.Path) -> None:
    config = reading(tmp_path, [example({})])
    path = str(tmp_path / "in.record.gz")
    write(path, [example({})])
    config.train_input_reader.tf_record_input_reader.input_path[:] = [path]
    with pytest.raises(ConfigError, match=r"in\.record\.gz.*Decompress"):
        _dataset(config, runs_elsewhere=True)
