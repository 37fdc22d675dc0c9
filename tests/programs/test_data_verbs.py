import json

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from estimator_det.programs import cli, console
from estimator_det.protos import pipeline_pb2
from model_fn.checks import anchor_coverage
from tests.detectors.configs import small_config
from tests.inputs import examples
from tests.inputs.examples import BOXES, encoded, example
from tests.model_fn import fake


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def record(name, **changes):
    image = np.full([40, 60, 3], 90, np.uint8)
    image[:, :20] = [250, 250, 0]
    features = {"image/source_id": name, "image/encoded": encoded(image), **BOXES}
    return example({**features, "image/object/class/label": [1, 2], **changes})


@pytest.fixture
def config(tmp_path):
    """Path of a configuration with three good records and a damaged one, none for evaluation."""
    records = [record(f"image {i}") for i in range(3)]
    examples.write(tmp_path / "good.record", records)
    examples.write(tmp_path / "bad.record", [record("broken", **{"image/encoded": b"x"})])
    (tmp_path / "map.pbtxt").write_text('item { id: 1 name: "cat" } item { id: 2 name: "dog" }')
    message = pipeline_pb2.TrainEvalPipelineConfig(model=small_config())
    message.train_config.batch_size = 2
    message.train_input_reader.CopyFrom(
        examples.reader(
            f'tf_record_input_reader {{ input_path: "{tmp_path}/good.record" }} '
            f'label_map_path: "{tmp_path}/map.pbtxt"'
        )
    )
    path = tmp_path / "small.config"
    path.write_text(text_format.MessageToString(message))
    return path


def test_check_data_writes_report_findings_and_charts(config, tmp_path, capfd, monkeypatch):
    folder = tmp_path / "out"
    assert run("check-data", config, "--output_dir", folder) == console.EXIT_OK
    out, err = capfd.readouterr()
    assert "train_input_reader: 1 file, 3 records; 3 images and 6 boxes are used" in out
    assert out.splitlines()[-1].startswith("0 errors, ") and len(out.splitlines()) <= 15
    assert "%|" not in err  # a progress bar, which only a terminal gets
    assert sorted(path.name for path in folder.iterdir()) == [
        ".estimator-det-check-data",
        "findings.jsonl",
        "histograms.png",
        "report.json",
        "report.txt",
    ]
    findings = [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]
    document = json.loads((folder / "report.json").read_text())
    assert findings == document["problems"] and document["warnings"] == len(findings) > 0
    assert (folder / "report.txt").read_text().splitlines()[0] in out
    assert Image.open(folder / "histograms.png").width > 1000
    fake.without_charts(monkeypatch)
    assert run("check-data", config, "--output_dir", folder, "--verbose") == console.EXIT_OK
    whole, report = capfd.readouterr().out, (folder / "report.txt").read_text()
    assert whole.startswith(report) and "boxes by class" in report and "boxes by class" not in out
    assert out.splitlines()[-1] == whole.splitlines()[-1]


def test_check_data_fails_where_records_would_stop_a_run(
    config, no_charts, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(anchor_coverage, "has_anchors", lambda detector: False)
    key = "train_input_reader.tf_record_input_reader.input_path"
    paths = f"{key}=[{tmp_path}/good.record,{tmp_path}/bad.record]"
    folder = tmp_path / "out"
    arguments = (config, "--output_dir", folder, "--set", paths)
    assert run("check-data", *arguments, "--json") == console.EXIT_FAILED
    document = json.loads(capfd.readouterr().out)
    assert document["errors"] == 1
    assert document == json.loads((folder / "report.json").read_text())
    lines = (folder / "findings.jsonl").read_text().splitlines()
    assert len(lines) == document["errors"] + document["warnings"]
    found = json.loads(lines[0])
    assert (found["kind"], found["record"], found["source_id"], found["severity"]) == (
        "undecodable_image",
        0,
        "broken",
        "error",
    )
    assert found["file"].endswith("bad.record") and found["remedy"]
    # Skipping it is a warning, and a picture of an earlier check goes when there is none.
    skip = ("--set", "train_input_reader.bad_records.policy=SKIP")
    assert run("check-data", *arguments, *skip) == console.EXIT_OK
    only_bad = ("--set", f"{key}={tmp_path}/bad.record")
    assert run("check-data", *arguments, *only_bad) == console.EXIT_FAILED
    assert not (folder / "histograms.png").exists()


@pytest.mark.parametrize("option", ["--jobs=0", "--max_records=x"])
def test_check_data_refuses_impossible_numbers(config, option, capfd):
    assert run("check-data", config, option) == console.EXIT_USAGE
    assert "is not allowed: give 1 or more" in capfd.readouterr().err


def test_show_data_draws_what_enters_the_model(config, tmp_path, capfd):
    picture = tmp_path / "pictures" / "data.png"
    arguments = (config, "--num_images", 3, "--columns", 2, "--output", picture, "--seed", 1)
    assert run("show-data", *arguments) == console.EXIT_OK
    out = capfd.readouterr().out
    assert "image                              float32  [2, 64, 64, 3]" in out
    assert f"3 images: {picture}" in out
    assert run("show-data", *arguments, "--json") == console.EXIT_OK
    result = {"file": str(picture), "images": 3, "images_without_boxes": 0, "rotated": []}
    assert json.loads(capfd.readouterr().out) == result
    pixels = np.asarray(Image.open(picture))
    # The yellow third of each picture is yellow again.
    assert np.mean(np.abs(pixels.astype(int) - [250, 250, 0]).max(axis=2) < 8) > 0.05


def test_show_data_of_augmentations(config, tmp_path, capfd):
    """Of the configuration, by default settings and by other ones; a bad record is left out."""
    key = "train_input_reader.tf_record_input_reader.input_path"
    steps = "train_config.data_augmentation_options"
    options = ["--set", f"{key}=[{tmp_path}/good.record,{tmp_path}/bad.record]"]
    options += ["--set", f"{steps}=[{{mosaic {{ min_scale: 0.9 }}}}]"]
    named = ["--augmentation", "mosaic", "--augmentation", "random_pad_image: pad_color: 7"]
    picture = tmp_path / "steps" / "data.png"
    arguments = [config, *options, "--num_images", 2, "--columns", 1, "--output", picture]
    assert run("show-data", *arguments, *named) == console.EXIT_OK
    out = capfd.readouterr().out
    files = [picture.parent / name for name in ("data-1-mosaic.png", "data-2-random_pad_image.png")]
    assert sorted(picture.parent.iterdir()) == files
    assert all(str(path) in out for path in files) and "skipped 1 record that cannot be" in out
    assert Image.open(files[0]).width == 5 * 370 + 10  # four records and a result
    assert run("show-data", *arguments, "--augmentation", "mosaic", "--eval") == console.EXIT_USAGE
    assert "evaluation does not augment" in capfd.readouterr().err
    assert run("show-data", *arguments, "--augmentation", "copy_paste") == console.EXIT_USAGE
    assert "copy_paste: needs train_input_reader.load_instance_masks" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["x.webp", "x.jpg", "x"])
def test_show_data_refuses_other_formats(config, tmp_path, capfd, name):
    assert run("show-data", config, "--output", tmp_path / name) == console.EXIT_USAGE
    assert f"{name}, and show-data writes PNG files" in capfd.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("step", [None, "random_horizontal_flip"])
def test_show_data_draws_rotated_photos_as_stored_and_names_them(config, tmp_path, capfd, step):
    """Training decodes the pixels as stored: the yellow third stays on the left."""
    image = np.full([40, 60, 3], 90, np.uint8)
    image[:, :20] = [250, 250, 0]
    photo = encoded(image, "JPEG", exif=examples.orientation(6), quality=95)
    records = [record("upright"), record("photo", **{"image/encoded": photo})]
    examples.write(tmp_path / "good.record", records)
    picture = tmp_path / "data.png"
    arguments = [config, "--num_images", 2, "--columns", 1, "--output", picture, "--seed", 1]
    assert run("show-data", *arguments, *(["--augmentation", step] if step else [])) == 0
    out = capfd.readouterr().out
    (line,) = [line for line in out.splitlines() if "EXIF" in line]
    assert line.startswith("photo: the EXIF data of an image rotate it, but training uses")
    assert "--exif apply" in line
    if step is None:
        # In both pictures the yellow third has its full height of 64 rows of 64.
        pixels = np.asarray(Image.open(picture)).astype(int)
        yellow = np.abs(pixels - [250, 250, 0]).max(axis=2) < 30
        assert np.sum(yellow.sum(axis=1) > 60) > 500


def test_show_data_of_evaluation(config, tmp_path, capfd):
    picture = tmp_path / "data.png"
    assert run("show-data", config, "--eval", "--output", picture) == console.EXIT_USAGE
    assert "no eval_input_reader" in capfd.readouterr().err
    reader = f"tf_record_input_reader {{ input_path: '{tmp_path}/good.record' }}"
    override = ("--config_override", f"eval_input_reader {{ {reader} }}")
    arguments = (config, "--eval", "--output", picture, *override)
    assert run("show-data", *arguments) == console.EXIT_OK
    assert "3 images: " in capfd.readouterr().out
