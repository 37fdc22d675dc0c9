import functools
import logging
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.errors import UsageError
from exporters import export_saved_model
from inputs.datasets import writer
from inputs.serving import INPUT_TYPES
from model_fn.serving import saved_model as served
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.inputs.examples import example
from tests.model_fn.serving.requests import read_requests

MAX_DETECTIONS = 20
NUM_SCORES = 5  # four classes and background
assert_alike = functools.partial(assert_same, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def loaded_all(exported_all):
    return tf.saved_model.load(str(exported_all / "saved_model"))


@pytest.fixture(scope="module")
def loaded_trainable(exported_trainable):
    return tf.saved_model.load(str(exported_trainable / "saved_model"))


def test_folder(exported, trained):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        ".estimator-det-export",
        "saved_model",
        "frozen_inference_graph.pb",
        "model.ckpt.index",
        "model.ckpt.meta",
        "model.ckpt.data-00000-of-00001",
        "checkpoint",
        "pipeline.config",
    }
    assert pipeline.read_pipeline(str(exported / "pipeline.config")) == trained.config
    assert tf.train.latest_checkpoint(str(exported)) == str(exported / "model.ckpt")
    assets = list((exported / "saved_model" / "assets").iterdir())
    assert [asset.read_text() for asset in assets] == [pathlib.Path(trained.label_map).read_text()]


def test_signature_names_dtypes_and_shapes(exported):
    with tf.Graph().as_default(), tf1.Session() as session:
        meta = tf1.saved_model.load(session, ["serve"], str(exported / "saved_model"))
    assert {*meta.signature_def} == {"serving_default", "tensorflow/serving/predict"}
    signature = meta.signature_def["serving_default"]
    assert meta.signature_def["tensorflow/serving/predict"] == signature
    assert signature.method_name == "tensorflow/serving/predict"
    ((key, tensor),) = signature.inputs.items()
    assert (key, tensor.name, tensor.dtype) == ("inputs", "image_tensor:0", tf.uint8)
    assert [d.size for d in tensor.tensor_shape.dim] == [-1, -1, -1, 3]
    num_anchors = signature.outputs["raw_detection_boxes"].tensor_shape.dim[1].size
    assert num_anchors > 0
    shapes = {
        "num_detections": [-1],
        "detection_boxes": [-1, MAX_DETECTIONS, 4],
        "detection_scores": [-1, MAX_DETECTIONS],
        "detection_classes": [-1, MAX_DETECTIONS],
        "raw_detection_boxes": [-1, num_anchors, 4],
        "raw_detection_scores": [-1, num_anchors, NUM_SCORES],
        "detection_multiclass_scores": [-1, MAX_DETECTIONS, NUM_SCORES],
        "detection_anchor_indices": [-1, MAX_DETECTIONS],
    }
    assert set(shapes) == set(signature.outputs)
    for key, shape in shapes.items():
        info = signature.outputs[key]
        assert (info.name, info.dtype) == (f"{key}:0", tf.float32)
        assert [d.size for d in info.tensor_shape.dim] == shape, key


def test_exported_checkpoint_is_the_trained_one(exported, trained):
    expected = stored(trained.checkpoint)
    del expected["global_step"]
    assert_same(stored(exported / "model.ckpt"), expected, rtol=0, atol=0)


def test_all_input_types_agree(loaded_all, pictures, expected):
    signatures_by_name = loaded_all.signatures
    names = {"serving_default", "tensorflow/serving/predict", *INPUT_TYPES}
    assert set(signatures_by_name) == names
    for name in INPUT_TYPES:
        (placeholder,) = signatures_by_name[name].inputs[:1]
        assert placeholder.name == f"{name}:0"
    assert signatures_by_name["tf_example"].inputs[0].shape.as_list() == [None]
    encoded = [writer.encode_image(picture, "png") for picture in pictures]
    feeds = {
        "serving_default": tf.constant(pictures),
        "image_tensor": tf.constant(pictures),
        "float_image_tensor": tf.constant(pictures, tf.float32),
        "encoded_image_string_tensor": tf.constant(encoded),
        "tf_example": tf.constant([example({"image/encoded": image}) for image in encoded]),
    }
    for name, feed in feeds.items():
        outputs = signatures_by_name[name](inputs=feed)
        assert_alike({key: value.numpy() for key, value in outputs.items()}, expected)


def _nodes(folder):
    document = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model" / "saved_model.pb").read_bytes()
    )
    return document.meta_graphs[0].graph_def.node


def test_weights_are_constants_that_contain_batch_norm(exported_all, exported):
    """One convolution for each weight, although four signatures share them."""
    assert list((exported_all / "saved_model" / "variables").iterdir()) == []
    operations = {node.op for node in _nodes(exported_all)}
    assert {"Conv2D", "BiasAdd"} <= operations
    assert not operations & {"VarHandleOp", "FusedBatchNormV3"}
    one, several = (
        sorted(node.name for node in _nodes(folder) if node.name.endswith("weights_folded"))
        for folder in (exported, exported_all)
    )
    assert one == several and len(one) == 2  # the layers of the small network
    frozen = tf1.GraphDef.FromString((exported_all / "frozen_inference_graph.pb").read_bytes())
    frozen_operations = {node.op for node in frozen.node}
    assert "FusedBatchNormV3" in frozen_operations and "VarHandleOp" not in frozen_operations


def test_trainable_has_the_variables_of_the_checkpoint(
    exported_trainable, loaded_trainable, pictures, expected
):
    variables = str(exported_trainable / "saved_model" / "variables" / "variables")
    found = tf.train.load_checkpoint(variables).get_variable_to_shape_map()
    checkpoint = tf.train.load_checkpoint(str(exported_trainable / "model.ckpt"))
    assert found == checkpoint.get_variable_to_shape_map()
    assert {f"{name}:0" for name in found} == {one.name for one in loaded_trainable.variables}
    outputs = loaded_trainable.signatures["serving_default"](inputs=tf.constant(pictures))
    assert_alike({key: value.numpy() for key, value in outputs.items()}, expected)


@pytest.mark.parametrize(("name", "sizes"), [("all", [1]), ("trainable", [1, 2, 3])])
def test_warmup_requests_run(request, name, sizes):
    folder = request.getfixturevalue(f"exported_{name}") / "saved_model"
    requests = read_requests(str(folder / "assets.extra" / "tf_serving_warmup_requests"))
    runs = request.getfixturevalue(f"loaded_{name}").signatures
    keys = ["serving_default", *list(INPUT_TYPES)[1:]]
    assert [key for key, _ in requests] == [key for key in keys for _ in sizes]
    scores = []
    for (key, inputs), size in zip(requests, sizes * len(keys)):
        feed = {name: tf.constant(value) for name, value in inputs.items()}
        scores.append(runs[key](**feed)["raw_detection_scores"].numpy())
        assert len(scores[-1]) == size
        # All requests are of the same gray image.
        np.testing.assert_allclose(scores[-1], np.repeat(scores[0], size, 0), atol=1e-5)


def test_a_batch_above_the_limit_is_refused(loaded_trainable, pictures, trained, tmp_path):
    runs = loaded_trainable.signatures
    encoded = writer.encode_image(pictures[0], "png")
    for key, feed in (
        ("serving_default", np.repeat(pictures, 2, 0)),
        ("encoded_image_string_tensor", [encoded] * 4),
        ("tf_example", [example({"image/encoded": encoded})] * 4),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="this model takes 3 at most"):
            runs[key](inputs=tf.constant(feed))
    for limit, shape, message in (
        (0, None, "max_batch is 0; it must be between 1 and 1024"),
        (2, [4, 50, 70, 3], "has the batch size 4, above max_batch 2"),
    ):
        with pytest.raises(UsageError, match=message):
            export_saved_model(
                trained.config,
                trained.checkpoint,
                str(tmp_path / "out"),
                input_shape=shape,
                max_batch=limit,
            )


def test_weights_that_no_file_can_contain_stay_variables(
    trained, exported, tmp_path, monkeypatch, caplog
):
    folder = tmp_path / "out"
    shutil.copytree(exported, folder)
    monkeypatch.setattr(served, "MAX_FILE_BYTES", served.GRAPH_BYTES + 1000)
    with caplog.at_level(logging.WARNING):
        written = export_saved_model(
            trained.config, trained.checkpoint, str(folder), overwrite=True
        )
    assert "more weights than a graph file can contain" in caplog.text
    assert written.has_variables and written.frozen_graph is None
    assert not (folder / "frozen_inference_graph.pb").exists()  # from the earlier export
    assert list((folder / "saved_model" / "variables").iterdir())


SERVE = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
folder, data = sys.argv[1:]
images = np.load(data + ".npy")
served = tf.saved_model.load(folder).signatures["serving_default"](inputs=tf.constant(images))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)
    names = {key: key + ":0" for key in served}
    fetched = session.run(names, {"image_tensor:0": images})
own = {"estimator_det", "exporters", "model_fn", "inputs"} & set(sys.modules)
assert not own, own
np.savez(data, **{key: value.numpy() for key, value in served.items()})
np.savez(data + ".session", **fetched)
"""


def test_served_by_a_process_that_has_only_tensorflow(exported, pictures, expected, tmp_path):
    """With TensorFlow's optimizations, and without the empty folder of variables."""
    folder, data = tmp_path / "served", str(tmp_path / "data")
    shutil.copytree(exported / "saved_model", folder)
    (folder / "variables").rmdir()  # what copies to buckets and archives lose
    np.save(data + ".npy", pictures)
    subprocess.run(
        [sys.executable, "-c", SERVE, str(folder), data], cwd=tmp_path, check=True, timeout=300
    )
    for path in (f"{data}.npz", f"{data}.session.npz"):
        outputs = dict(np.load(path))
        assert_alike(outputs, expected)
        scores = np.abs(outputs["detection_scores"] - expected["detection_scores"])
        assert scores.max() < 1e-5
