"""Damaged and hostile files are refused by name by the program, before it writes anything."""

from __future__ import annotations

import json
import pathlib

import flatbuffers
import numpy as np
import pytest

from estimator_det import cli
from estimator_det.compat.model_files import tflite_schema
from estimator_det.config import pipeline
from exporters.importing import importer
from tests.exporters.importing.conftest import constants_of, set_constant, to_tflite, write_tfjs

WEIGHTS = "BoxPredictor_0/ClassPredictor/weights"

pytestmark = pytest.mark.usefixtures("small_network")


@pytest.fixture(scope="module")
def tflite_file(original) -> bytes:
    return to_tflite(original.graph_def)


def _with_nan(values: np.ndarray) -> np.ndarray:
    spoiled = values.copy()
    spoiled.flat[1] = np.nan
    return spoiled


def _nan_graph(original):
    graph_def = type(original.graph_def)()
    graph_def.CopyFrom(original.graph_def)
    set_constant(graph_def, WEIGHTS, _with_nan(constants_of(graph_def)[WEIGHTS]))
    return graph_def


def _empty(original, tflite_file, folder):
    (folder / "empty.pb").write_bytes(b"")
    return "frozen_graph", folder / "empty.pb", "contains no operations"


def _cut_graph(original, tflite_file, folder):
    content = original.graph_def.SerializeToString()
    (folder / "cut.pb").write_bytes(content[:-100])
    return "frozen_graph", folder / "cut.pb", "cut off after"


def _text(original, tflite_file, folder):
    (folder / "text.pb").write_text("this is no graph")
    return "frozen_graph", folder / "text.pb", "text.pb"


def _nan_in_graph(original, tflite_file, folder):
    (folder / "nan.pb").write_bytes(_nan_graph(original).SerializeToString())
    return "frozen_graph", folder / "nan.pb", f"{WEIGHTS} has 1 numbers of "


def _empty_tflite(original, tflite_file, folder):
    (folder / "empty.tflite").write_bytes(b"")
    return "tflite", folder / "empty.tflite", "is not a TFLite model"


def _cut_tflite(original, tflite_file, folder):
    (folder / "cut.tflite").write_bytes(tflite_file[: len(tflite_file) // 3])
    return "tflite", folder / "cut.tflite", "damaged or cut off"


def _foreign_operation(original, tflite_file, folder):
    schema = tflite_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(tflite_file, 0))
    code = schema.OperatorCodeT()
    code.builtinCode = schema.BuiltinOperator.CUSTOM
    code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode = b"RunShell"
    model.operatorCodes.append(code)
    builder = flatbuffers.Builder(len(tflite_file))
    builder.Finish(model.Pack(builder), b"TFL3")
    (folder / "op.tflite").write_bytes(bytes(builder.Output()))
    return "tflite", folder / "op.tflite", "contains the operation RunShell"


def _nan_in_tflite(original, tflite_file, folder):
    (folder / "nan.tflite").write_bytes(to_tflite(_nan_graph(original)))
    return "tflite", folder / "nan.tflite", "NaN or infinite"


def _shard_outside(original, tflite_file, folder):
    (folder / "secret").write_bytes(b"x" * 1000)
    manifest = [{"paths": ["../secret"], "weights": []}]
    model = write_tfjs(original.graph_def, folder / "model", weightsManifest=manifest)
    return "tfjs", model, "'../secret', which is outside the folder"


def _empty_shard(original, tflite_file, folder):
    model = write_tfjs(original.graph_def, folder / "model")
    (model / "shard2").write_bytes(b"")
    return "tfjs", model, "the shard 'shard2' is empty (0 bytes)"


def _nan_in_tfjs(original, tflite_file, folder):
    return "tfjs", write_tfjs(_nan_graph(original), folder / "model"), f"{WEIGHTS} has 1 numbers"


def _absurd_shape(original, tflite_file, folder):
    model = write_tfjs(original.graph_def, folder / "model")
    content = json.loads((model / "model.json").read_text())
    content["weightsManifest"][0]["weights"][0]["shape"] = [1 << 40, 1 << 40]
    (model / "model.json").write_text(json.dumps(content))
    return "tfjs", model, "the shards end after"


def _empty_saved_model(original, tflite_file, folder):
    (folder / "saved").mkdir()
    (folder / "saved" / "saved_model.pb").write_bytes(b"")
    return "saved_model", folder / "saved", "contains no graph"


def _nan_in_checkpoint(original, tflite_file, folder):
    values = {name: original.arrays[name] for name in original.own.shapes}
    values[WEIGHTS] = _with_nan(values[WEIGHTS])
    importer.write_checkpoint(str(folder / "model.ckpt"), values, 0)
    return "checkpoint", folder / "model.ckpt", f"{WEIGHTS} has 1 numbers"


def _cut_checkpoint(original, tflite_file, folder):
    values = {name: original.arrays[name] for name in original.own.shapes}
    importer.write_checkpoint(str(folder / "model.ckpt"), values, 0)
    data = folder / "model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    return "checkpoint", folder / "model.ckpt", "is damaged"


@pytest.mark.parametrize(
    "make",
    [
        _empty, _cut_graph, _text, _nan_in_graph, _empty_tflite, _cut_tflite, _foreign_operation,
        _nan_in_tflite, _shard_outside, _empty_shard, _nan_in_tfjs, _absurd_shape,
        _empty_saved_model, _nan_in_checkpoint, _cut_checkpoint,
    ],
)  # fmt: skip
def test_refused_by_name(
    make, original, tflite_file, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    config = pipeline.save_pipeline(original.config, str(tmp_path / "config"))
    source, path, text = make(original, tflite_file, tmp_path)
    output = tmp_path / "imported"
    arguments = ["import", "--from", source, str(path), "--pipeline_config_path", config]
    assert cli.main([*arguments, "--output_directory", str(output)]) == 1
    error = capsys.readouterr().err
    assert str(path) in error and text in error
    assert "Traceback" not in error
    assert not output.exists()
