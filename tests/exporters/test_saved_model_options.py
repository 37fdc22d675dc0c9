"""Exports other than the usual one, and what is refused."""

import pathlib
import shutil

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.errors import RunError, UsageError
from exporters import export_saved_model, signatures
from exporters.formats.saved_model import SavedModelDetector
from exporters.network import ExportOptions
from inputs import machine
from inputs.datasets import writer
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.exporters.conftest import NAMES, save_checkpoint, small_config
from tests.inputs.examples import encoded, example


def _export(trained, folder, **fields):
    return export_saved_model(trained.config, pathlib.Path(trained.checkpoint), folder, **fields)


RAW = {
    "Postprocessor/raw_box_encodings": "raw_box_encodings",
    "Postprocessor/raw_box_locations": "raw_detection_boxes",
    "Postprocessor/raw_box_scores": "raw_detection_scores",
}


def test_additional_outputs_and_the_graph_as_text(trained, pictures, expected, tmp_path):
    """The Object Detection API's names of raw tensors; all are float32, of every anchor."""
    folder = tmp_path / "out"
    options = ExportOptions(inference_graph=True, output_tensors=[*RAW, "image_tensor:0"])
    export_saved_model(trained.config, trained.checkpoint, str(folder), options)
    run = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    outputs = {key: value.numpy() for key, value in run(tf.constant(pictures)).items()}
    assert set(outputs) == {*expected, *RAW, "image_tensor"}
    np.testing.assert_array_equal(outputs["image_tensor"], pictures)
    for name, key in RAW.items():
        assert outputs[name].dtype == np.float32
        if key in expected:
            np.testing.assert_array_equal(outputs[name], outputs[key])
    assert outputs["Postprocessor/raw_box_encodings"].shape == expected["raw_detection_boxes"].shape
    frozen = tf1.GraphDef.FromString((folder / "frozen_inference_graph.pb").read_bytes())
    assert set(RAW) <= {node.name for node in frozen.node}
    text = text_format.Parse((folder / "inference_graph.pbtxt").read_text(), tf1.GraphDef())
    names = {node.name for node in text.node}
    assert {*RAW, "image_tensor", *expected} <= names
    assert not any("save/" in name for name in names)


def test_detections_and_class_names_alone(trained, pictures, expected, tmp_path):
    """In each signature, and in the frozen graph."""
    types = ["image_tensor", "tf_example"]
    export = _export(trained, tmp_path / "out", input_types=types, outputs="detections")
    kept = {"num_detections", *(f"detection_{key}" for key in ("boxes", "scores", "classes"))}
    loaded = tf.saved_model.load(export.saved_model).signatures
    examples = [example({"image/encoded": encoded(each)}) for each in pictures]
    for name, fed in (("serving_default", pictures), ("tf_example", examples)):
        outputs = {key: value.numpy() for key, value in loaded[name](tf.constant(fed)).items()}
        names = outputs.pop("detection_class_names")
        assert set(outputs) == kept
        for key, value in outputs.items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-5)
        wanted = [[NAMES[int(i)] for i in row] for row in outputs["detection_classes"]]
        assert names.astype(str).tolist() == wanted and np.unique(names).size > 1
    frozen = tf1.GraphDef.FromString((tmp_path / "out/frozen_inference_graph.pb").read_bytes())
    nodes = {node.name for node in frozen.node}
    assert {*kept, "detection_class_names"} <= nodes
    assert not nodes & {"raw_detection_boxes", "detection_multiclass_scores"}
    config = small_config("")
    with pytest.raises(UsageError, match=r"--outputs detections: .*give --label_map_path"):
        export_saved_model(config, trained.checkpoint, str(tmp_path / "b"), outputs="detections")
    assert not (tmp_path / "b").exists()


def test_rows_past_the_last_detection_have_no_class_name():
    outputs = {
        "num_detections": tf.constant([1.0, 0.0]),
        "detection_classes": tf.constant([[2.0, 1.0], [1.0, 1.0]]),
        "detection_keypoints": tf.zeros([2, 2, 1, 2]),
        "detection_features": tf.zeros([2, 2]),
    }
    found = signatures.compact_outputs(outputs, {1: "cat"}, 2)
    assert found.pop("detection_class_names").numpy().tolist() == [[b"2", b""], [b"", b""]]
    assert set(found) == {"num_detections", "detection_classes", "detection_keypoints"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Postprocessor/raw_box_score", "did you mean 'Postprocessor/raw_box_scores'"),
        ("image_tensor:3", "is not in the graph"),
        ("", "is not in the graph"),
    ],
)
def test_an_unknown_output_leaves_an_earlier_export(trained, exported, tmp_path, name, message):
    folder = tmp_path / "out"
    shutil.copytree(exported, folder)
    with pytest.raises(UsageError, match=message):
        _export(trained, folder, overwrite=True, output_tensors=[name])
    assert (folder / "saved_model" / "saved_model.pb").exists()


def test_outputs_are_of_the_first_input_type(trained, tmp_path):
    """The same layer for another input has no value in the signature of the first."""
    name, types = "Postprocessor/raw_box_scores", ["image_tensor", "tf_example"]
    other, folder = [name.replace("/", "_1/")], tmp_path / "out"
    with pytest.raises(UsageError, match=r"graph of the first input type; did you mean 'P"):
        _export(trained, folder, input_types=types, output_tensors=other)
    assert not folder.exists()
    _export(trained, folder, input_types=types, output_tensors=[name])
    run = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    outputs = run(tf.zeros([1, 50, 70, 3], tf.uint8))
    np.testing.assert_array_equal(outputs[name], outputs["raw_detection_scores"])


def test_additional_channels(trained, tmp_path):
    """Image tensors of five channels and examples give the same; encoded images cannot."""
    config = pipeline.apply_overrides(
        trained.config, ["eval_input_reader[0].num_additional_channels=2"]
    )
    prefix = save_checkpoint(config, str(tmp_path / "model.ckpt"), channels=5)
    folder = str(tmp_path / "out")
    written = export_saved_model(config, prefix, folder, input_types=["all"])
    assert written.input_types == ("image_tensor", "tf_example", "float_image_tensor")
    images = np.random.default_rng(2).integers(0, 256, (2, 50, 70, 5), dtype=np.uint8)
    runs = tf.saved_model.load(written.saved_model).signatures
    examples = [
        example(
            {
                "image/encoded": writer.encode_image(image[..., :3], "png"),
                "image/additional_channels/encoded": [
                    writer.encode_image(image[..., channel], "png") for channel in (3, 4)
                ],
            }
        )
        for image in images
    ]
    expected = runs["serving_default"](tf.constant(images))["raw_detection_scores"]
    for name, fed in (
        ("float_image_tensor", images.astype(np.float32)),
        ("tf_example", np.array(examples)),
    ):
        found = runs[name](tf.constant(fed))["raw_detection_scores"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    other = runs["serving_default"](tf.constant(images[..., [0, 1, 2, 4, 3]]))
    assert not np.allclose(other["raw_detection_scores"], expected, atol=1e-4)
    with pytest.raises(RunError, match="takes images of 5 channels, and detect reads files of"):
        SavedModelDetector(folder)
    with pytest.raises(UsageError, match=r"encoded_image_string_tensor cannot be exported: num_a"):
        export_saved_model(
            config, prefix, str(tmp_path / "x"), input_types=["encoded_image_string_tensor"]
        )
    with pytest.raises(UsageError, match=r"it must be batch, height, width, 5"):
        export_saved_model(config, prefix, str(tmp_path / "x"), input_shape=[1, None, None, 3])
    assert not (tmp_path / "x").exists()


def test_moving_averages_become_the_weights(trained, exported, tmp_path):
    prefix = save_checkpoint(trained.config, str(tmp_path / "ema.ckpt"), moving_averages=True)
    config = pipeline.apply_overrides(trained.config, ["eval_config.use_moving_averages=true"])
    written = export_saved_model(config, prefix, str(tmp_path / "out"))
    plain = stored(exported / "model.ckpt")
    assert all(np.isfinite(value).all() for value in plain.values())
    assert_same(stored(written.checkpoint), plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "suffix", "error", "message"),
    [
        ("eval_config.use_moving_averages=true", "", RunError, "use_moving_averages=false"),
        ("model.ssd.num_classes=4", "1", FileNotFoundError, r"did you mean 'model.ckpt-20'"),
    ],
)
def test_a_failed_export_leaves_no_folder(trained, tmp_path, change, suffix, error, message):
    config = pipeline.apply_overrides(trained.config, [change])
    with pytest.raises(error, match=message):
        export_saved_model(config, f"{trained.checkpoint}{suffix}", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_full_folder_is_only_replaced_when_asked(trained, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty"):
        _export(trained, folder)
    old = folder / "saved_model" / "old.txt"
    old.parent.mkdir()
    old.touch()
    with pytest.raises(FileExistsError, match="contains no earlier export"):
        _export(trained, folder, overwrite=True)
    (folder / "pipeline.config").touch()  # Exports of versions without a marker have one, too.
    _export(trained, folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not old.exists()
    assert (folder / "saved_model" / "saved_model.pb").exists()


def test_label_map_given_or_missing(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"label map .*none\.pbtxt does not exist"):
        _export(trained, tmp_path / "a", label_map_path="none.pbtxt")
    for item, words in (
        ("", "no item has an id"),
        ("item { id: 99 name: 'a' }", "has id 99, and the model "),
    ):
        (tmp_path / "map.pbtxt").write_text(item)
        with pytest.raises(UsageError, match=rf"^(the label map )?{tmp_path}/map.pbtxt.*{words}"):
            _export(trained, tmp_path / "a", label_map_path=str(tmp_path / "map.pbtxt"))
    config = small_config("nowhere.pbtxt")
    written = export_saved_model(config, trained.checkpoint, str(tmp_path / "b"))
    assert written.label_map is None


@pytest.mark.skipif(not machine.has_bfloat16(), reason="this processor does not have bfloat16")
def test_bfloat16_is_of_the_saved_model_alone(trained, pictures, expected, tmp_path):
    written = export_saved_model(
        trained.config,
        trained.checkpoint,
        str(tmp_path / "out"),
        input_types=["image_tensor", "encoded_image_string_tensor"],
        precision="bfloat16",
    )
    encoded = tf.constant([writer.encode_image(picture, "png") for picture in pictures])
    module = tf.saved_model.load(written.saved_model)
    for key, images in (("image_tensor", pictures), ("encoded_image_string_tensor", encoded)):
        raw = module.signatures[key](tf.constant(images))["raw_detection_boxes"].numpy()
        error = np.abs(raw - expected["raw_detection_boxes"]).max()
        assert 1e-5 < error < 0.1, key
    with tf.Graph().as_default() as graph:
        frozen = tf1.GraphDef.FromString(pathlib.Path(written.frozen_graph).read_bytes())
        tf.import_graph_def(frozen, name="")
        dtypes = {tensor.dtype for each in graph.get_operations() for tensor in each.outputs}
    assert tf.float32 in dtypes and tf.bfloat16 not in dtypes


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        (["graph_rewriter.quantization.delay=1"], {}, "SSDs without quantization"),
        ([], {"trainable": True}, "weights that are constants"),
    ],
)
def test_what_cannot_be_bfloat16(trained, tmp_path, changes, options, reason):
    config = pipeline.apply_overrides(trained.config, changes)
    with pytest.raises(UsageError, match=rf"precision is bfloat16, which .*{reason}"):
        export_saved_model(
            config, trained.checkpoint, str(tmp_path / "out"), precision="bfloat16", **options
        )
