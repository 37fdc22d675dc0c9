from __future__ import annotations

import bisect
import copy
import os
import pathlib
import re
import shutil
from typing import Any, Dict, List

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors.base import make_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.programs import cli
from exporters import Detector, formats
from exporters.formats import check, converters, exchange
from exporters.formats.base import FORMATS, num_bytes
from exporters.formats.export import export_formats
from exporters.formats.frozen_graph import FROZEN_GRAPH_FILE, GraphDetector
from exporters.formats.samples import sample_images
from exporters.network import ExportOptions, RestoredNetwork, TfliteOptions, restored_network
from tests.exporters.conftest import NAMES, Trained

WRITTEN = ["saved_model", "frozen_graph", "tflite"]
CALIBRATION = """model.ssd.post_processing.calibration_config={ class_id_function_approximations {
class_id_xy_pairs_map { key: 1 value { x_y_pair { x: 0 y: 0.1 } x_y_pair { x: 0.4 y: 0.6 } } }
class_id_xy_pairs_map { key: 3 value { x_y_pair { x: 0.1 y: 0.2 } } } } }"""


@pytest.fixture(scope="module")
def calibrated(trained: Trained) -> Trained:
    return trained._replace(config=pipeline.apply_overrides(trained.config, [CALIBRATION]))


def _export(trained: Trained, folder: pathlib.Path, *names: str, **options: Any) -> Any:
    overwrite = options.pop("overwrite", False)
    return export_formats(
        trained.config,
        trained.checkpoint,
        str(folder),
        formats.resolve_formats(names),
        ExportOptions(**options),
        overwrite=overwrite,
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> List[str]:
    folder = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, [2, 40, 60, 3], dtype=np.uint8)
    for name, one in zip("ab", pixels):
        Image.fromarray(one).save(folder / f"{name}.png")
    return [str(folder)]


@pytest.fixture(scope="module")
def calls() -> List[str]:
    """Steps of `written` that take time, in the order of their names."""
    return []


@pytest.fixture(scope="module")
def written(
    trained: Trained, photos: List[str], calls: List[str], tmp_path_factory: Any
) -> pathlib.Path:
    """An export in three formats, each compared with the checkpoint."""
    detector, folder = (
        make_detector(trained.config.model, False),
        tmp_path_factory.mktemp("written"),
    )
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (type(detector), "predict"),
            (tf1.train.Saver, "restore"),
            (tf1.graph_util, "convert_variables_to_constants"),
        ):
            original = getattr(owner, name)

            def counted(
                *arguments: Any, original: Any = original, name: str = name, **options: Any
            ):
                bisect.insort(calls, name)
                return original(*arguments, **options)

            patch.setattr(owner, name, counted)
        export = _export(trained, folder, *WRITTEN, sample_images=photos)
    assert [each.name for each in export.models] == WRITTEN
    for each in export.models:
        assert each.difference.scores < 1e-4 and each.difference.boxes < 1e-4
        assert each.difference.rows > 100 and each.num_bytes == num_bytes(each.path) > 10_000
    return folder


def test_the_network_is_built_and_restored_once(written, calls):
    assert calls == ["convert_variables_to_constants", "predict", "restore"]


def test_formats_are_found_and_replaced(trained, photos, written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "exported")
    found = formats.exported_models(str(folder))
    assert [each.format.name for each in found] == WRITTEN
    assert all(each.load().class_names == NAMES for each in found[1:])
    assert (folder / "label_map.pbtxt").exists()

    size = (folder / "model.tflite").stat().st_size
    (folder / exchange.FINISHED).mkdir()  # as of an exchange that was killed
    shutil.copyfile(folder / "model.tflite", folder / exchange.FINISHED / "model.tflite")
    (found,) = formats.exported_models(str(folder))
    assert found.path == str(folder / exchange.FINISHED / "model.tflite")
    again = _export(
        trained, folder, "tflite", overwrite=True, sample_images=photos, quantize="int8"
    )
    assert [(each.name, each.num_bytes < size) for each in again.models] == [("tflite", True)]
    assert [each.format.name for each in formats.exported_models(str(folder))] == ["tflite"]
    assert {path.name for path in folder.iterdir()} >= {"pipeline.config", "checkpoint"}


@pytest.mark.parametrize("trainable", [False, True])
def test_a_saved_model_contains_no_tensors_of_other_formats(trainable, trained, written, tmp_path):
    if trainable:
        _export(trained, tmp_path, "saved_model", "tflite", trainable=True)
    folder = (tmp_path if trainable else written) / "saved_model"
    assert (folder / "variables" / "variables.index").exists() == trainable
    with tf1.Session(graph=tf.Graph()) as session:
        tf1.saved_model.load(session, ["serve"], str(folder))
        names = [node.name for node in session.graph.get_operations()]
    assert "detection_boxes" in names
    assert not [name for name in names if name.startswith(("raw_outputs", "static_outputs"))]


def test_an_absent_sample_image_is_reported_before_anything_is_written(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.jpg does not exist"):
        _export(trained, tmp_path / "exported", "saved_model", sample_images=["none.jpg"])
    assert not (tmp_path / "exported").exists()


def test_records_in_storage_that_cannot_be_reached_are_no_sample_images(trained, caplog):
    config = copy.deepcopy(trained.config)
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.tf_record_input_reader.input_path[:] = ["nowhere://bucket/a.record"]
    assert not sample_images(config, (), 1)
    assert "nowhere://bucket/a.record: not used as sample images: File system" in caplog.text


def test_a_label_map_in_the_folder_of_the_export_stays(trained, photos, tmp_path, monkeypatch):
    """The folder has an export without marker, and its path is relative."""
    for name in (FROZEN_GRAPH_FILE, "pipeline.config"):
        (tmp_path / name).touch()
    names = tmp_path / "label_map.pbtxt"
    shutil.copyfile(trained.config.train_input_reader.label_map_path, names)
    monkeypatch.chdir(tmp_path)
    keywords = {"overwrite": True, "sample_images": photos, "label_map_path": str(names)}
    export = _export(
        trained, pathlib.Path(), "frozen_graph", input_shape=[1, 50, 70, 3], **keywords
    )
    assert names.exists() and os.path.basename(export.models[0].path) == FROZEN_GRAPH_FILE
    model = formats.load_model(FROZEN_GRAPH_FILE)
    assert model.class_names == NAMES
    assert model.image_size == (50, 70)
    pixels = np.zeros([30, 200, 3], np.uint8)
    assert Detector(model)(pixels).boxes.shape[1] == 4, "resized"


def test_a_model_without_detections_is_written_and_not_compared(trained, photos, tmp_path):
    tflite = TfliteOptions(add_postprocessing_op=False)
    export = _export(trained, tmp_path, "tflite", sample_images=photos, tflite=tflite)
    (model,) = export.models
    assert model.difference is None and model.num_bytes > 10_000


def test_a_model_that_differs_is_refused_and_set_aside(trained, photos, tmp_path, monkeypatch):
    run = RestoredNetwork.run

    def other(self: Any, images: np.ndarray) -> Any:
        found = run(self, images)
        return {**found, check.RAW_SCORES: found[check.RAW_SCORES] + 0.1}

    folder = tmp_path / "exported"
    with monkeypatch.context() as patched:
        patched.setattr(RestoredNetwork, "run", other)
        with pytest.raises(RunError) as refused:
            _export(trained, folder, "saved_model", "frozen_graph", sample_images=photos)
    for name in ("saved_model", "frozen_inference_graph.pb"):
        assert re.search(rf"{name} does not give .* differ by 0.1,", str(refused.value))
        assert not (folder / name).exists() and (folder / f"{name}.differs").exists()
    with pytest.raises(FileNotFoundError, match="no model in"):
        formats.exported_models(str(folder))

    _export(trained, folder, "frozen_graph", sample_images=photos, overwrite=True)
    assert not list(folder.glob("*.differs"))
    before = _contents(folder)
    with monkeypatch.context() as patched:
        patched.setattr(RestoredNetwork, "run", other)
        with pytest.raises(RunError, match=rf"\nWhat was in {folder} is unchanged$"):
            _export(trained, folder, "saved_model", sample_images=photos, overwrite=True)
    after = _contents(folder)
    assert after.items() > before.items()
    assert {path.parts[0] for path in after.keys() - before.keys()} == {"saved_model.differs"}


def _contents(folder: pathlib.Path) -> Dict[pathlib.Path, bytes]:
    """Bytes of all files below a folder by relative path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in found}


def test_a_converter_that_fails_leaves_the_earlier_export(
    trained, photos, written, tmp_path, monkeypatch
):
    message = "onnx, tf2onnx of .*/python, fails with code 3; its last lines:\n  the reason"
    folder = tmp_path / "exported"
    python = tmp_path / "python"
    failure = "echo the reason; exit 3"
    python.write_text(f'#!/bin/sh\ncase "$2" in *sys.exit*) exit 0;; esac\n{failure}\n')
    python.chmod(0o755)
    monkeypatch.setattr(converters, "missing_runtime", lambda chosen: "")
    options = {"sample_images": photos, "converter_python": str(python)}
    shutil.copytree(written, folder)
    (folder / "unfinished_export").mkdir()  # as of an export that was killed
    before = _contents(folder)
    with pytest.raises(RunError, match=message):
        _export(trained, folder, "saved_model", "onnx", overwrite=True, **options)
    assert _contents(folder) == before and (folder / "label_map.pbtxt").exists()
    assert not (folder / "unfinished_export").exists()


@pytest.mark.parametrize("name", ["onnx", "tfjs", "openvino"])
def test_a_missing_converter_is_reported_before_anything_is_written(
    name, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(converters, "_FIND", "import sys; sys.exit(sys.argv[1])")
    module = FORMATS.get(name)().converter[0]
    with pytest.raises(UsageError, match=rf"no module {module}; run .*estimator-det\[{name}\]'"):
        _export(trained, tmp_path / "exported", name)
    with pytest.raises(UsageError, match=f"--format {name} takes images as tensors"):
        _export(trained, tmp_path / "exported", name, input_types=["tf_example"])
    assert not (tmp_path / "exported").exists()


QUANTIZED = "graph_rewriter { quantization { delay: 10 } }"
RESIZER = "model { ssd { image_resizer { fixed_shape_resizer { resize_method:"
CONTEXT = "model { faster_rcnn { context_config { max_num_context_features: 5 } } }"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("onnx", QUANTIZED, "graph_rewriter.quantization is not supported yet; export saved_model"),
        ("tfjs", CONTEXT, "attend to context features are not supported yet"),
        ("tflite", QUANTIZED, "--quantize: is float16, and graph_rewriter.quantization gives"),
        ("tflite", CONTEXT, "model is faster_rcnn"),
        ("tflite", f"{RESIZER} NEAREST_NEIGHBOR }} }} }} }}", "is NEAREST_NEIGHBOR, and tflite"),
        ("openvino", f"{RESIZER} BICUBIC }} }} }} }}", "resize_method: is BICUBIC, and openvino"),
    ],
)
def test_models_that_a_format_cannot_be(name, change, message, trained):
    config = pipeline.merge_text(trained.config, change)
    options = ExportOptions(quantize="float16" if name == "tflite" else None)
    with pytest.raises(UsageError, match=message):
        FORMATS.get(name)().check(config, options)


def test_int8_needs_images(trained, tmp_path):
    with pytest.raises(UsageError, match=r"measures ranges on images.*--sample_images"):
        _export(trained, tmp_path / "exported", "tflite", quantize="int8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quantize=int8"], "--quantize: for TFLite only; add tflite to --format"),
        (
            ["--precision=bfloat16", "--format=onnx"],
            "--precision: for saved_model only; add saved_model to --format",
        ),
        (["--trainable", "--format=frozen_graph"], "--trainable: for saved_model only"),
        (["--outputs=detections", "--format=onnx"], "for saved_model and frozen_graph only"),
        (["--max_detections=3", "--use_regular_nms"], "--max_detections, --use_regular_nms: for"),
        (["--format=tflit"], "did you mean 'tflite'"),
        (["--format=frozen_graph, tflite", "--max_detections=0"], "--max_detections: is 0"),
        (["--format=tflite, tflite"], "give at least one, and each only once"),
        (["--input_type=image_tensr"], "did you mean 'image_tensor'"),
        (["--input_type=tf_example,tf_example"], "give at least one, and each only once"),
        (["--input_shape=1,300,300"], "has 3 sizes"),
        (["--input_shape", "-1,300,0,None"], "'0' is not a size"),
        (["--format=tflite", "--input_shape=8,64,64,3"], "--input_shape: has batches of 8"),
        (["--side_input_types=float"], "--side_input_types: needs --use_side_inputs"),
        (["--format=onnx", "--converter_python=none"], "--converter_python: none is no Python"),
        (["--set=model.ssd.num_classes=-1"], "model.ssd.num_classes: is -1"),
    ],
)
def test_flags_that_are_refused(flags, message, tmp_path, capsys):
    arguments = ["export", "estimator_det/configs/ssd_mobilenet_v1_shapes.config"]
    arguments += ["--trained_checkpoint_prefix=x", f"--output_directory={tmp_path / 'exported'}"]
    assert cli.main([*arguments, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        "train_config.fine_tune_checkpoint_type=unknown",
        "train_config.fine_tune_checkpoint=nowhere/model.ckpt",
        "train_input_reader.label_map_path=PATH_TO_BE_CONFIGURED/label_map.pbtxt",
        "eval_config.metrics_set=[unknown]",
        "eval_input_reader[0].tf_record_input_reader.input_path=[nowhere.record]",
    ],
)
def test_fields_that_an_export_does_not_use_are_not_checked(change, tmp_path, capsys):
    arguments = ["export", "estimator_det/configs/ssd_mobilenet_v1_shapes.config", "--set", change]
    arguments += ["--trained_checkpoint_prefix=x", f"--output_dir={tmp_path / 'exported'}"]
    assert cli.main(arguments) == 3
    assert "no checkpoint" in capsys.readouterr().err


def test_the_graph_of_converters(calibrated, tmp_path):
    """Converters know all its operations, and it detects the same."""
    folder = str(tmp_path / "exported")
    arguments = (calibrated.config, calibrated.checkpoint, folder, ExportOptions())
    with restored_network(*arguments, [converters.static_outputs]) as network:
        graph_def = converters.static_graph(network)
        pixels = np.random.default_rng(0).integers(0, 256, [1, 40, 60, 3], dtype=np.uint8)
        expected = network.run(pixels)
    seen = [node.op for node in graph_def.node]
    seen += [node.op for each in graph_def.library.function for node in each.node_def]
    unknown = {"CombinedNonMaxSuppression", "DenseBincount", "FusedBatchNormV3", "UpperBound"}
    assert unknown.isdisjoint(seen)
    assert "RaggedTensorToTensor" not in seen and "TensorScatterMax" not in seen
    model = GraphDetector(folder, graph_def)
    difference = check.compare(calibrated.config.model, [expected], model, list(pixels))
    assert max(difference.scores, difference.boxes) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "modules"),
    [("onnx", ("tf2onnx", "onnxruntime")), ("openvino", ("openvino",)), ("tfjs", ())],
)
def test_converters_that_are_installed(name, modules, calibrated, photos, tmp_path):
    for module in modules:
        pytest.importorskip(module)
    try:
        converters.find_converter(FORMATS.get(name)(), None)
    except UsageError as error:
        pytest.skip(str(error))
    export = _export(calibrated, tmp_path / "exported", name, sample_images=photos)
    (written,) = export.models
    assert written.difference.scores < 1e-4 and written.difference.boxes < 1e-4
    model = formats.load_model(str(tmp_path / "exported"))
    assert model.class_names == NAMES and model.batch_size is None
    pixels = np.random.default_rng(0).integers(0, 256, [3, 40, 60, 3], dtype=np.uint8)
    both, one = Detector(model)(pixels), Detector(model)(pixels[2])
    assert len(both) == 3 and len(one.scores)
    np.testing.assert_allclose(both[2].scores, one.scores, atol=1e-4)

    # As from a bucket, which the runtimes cannot read themselves.
    remote = f"ram://{tmp_path.name}/{os.path.basename(written.path)}"
    for folder, _, found in os.walk(written.path) if os.path.isdir(written.path) else []:
        for file in found:
            tf.io.gfile.copy(os.path.join(folder, file), f"{remote}/{file}")
    if not os.path.isdir(written.path):
        tf.io.gfile.copy(written.path, remote)
    np.testing.assert_array_equal(Detector(remote)(pixels[2]).scores, one.scores)
