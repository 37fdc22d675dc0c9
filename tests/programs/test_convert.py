"""The verb `convert`: reports, refusals, and a conversion that is killed."""

from __future__ import annotations

import json
import pathlib
import signal
import time

import pytest
from PIL import Image

from estimator_det.programs import cli, conversion_report
from inputs.conversion.engine import Conversion
from inputs.conversion.examples import NO_NOTES
from inputs.datasets.converters import CONVERTERS
from tests.inputs import examples
from tests.inputs.conversion import samples
from tests.inputs.conversion.test_engine import content, many

NOTHING = {"splits": {}, "faults": {}, **NO_NOTES}


def arguments(sample: samples.Sample, output: pathlib.Path, *more: str) -> list[str]:
    given = [f"--{key}={value}" for key, value in sample.options.__dict__.items() if value]
    start = ["convert", "--from", sample.format, "--to", "tfrecord", f"--output_dir={output}"]
    return [*start, *given, *more]


@pytest.mark.parametrize(
    "name",
    ["coco", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in [*CONVERTERS][1:])],
)
def test_every_format_from_the_command_line_and_back(name, tmp_path, capsys):
    sample = samples.make(tmp_path, name)
    assert cli.main(arguments(sample, tmp_path / "out", "--verbose")) == 0
    text = capsys.readouterr().out
    assert "train: 3 images, 3 boxes; 1 image without boxes" in text
    assert "2 dog" in text and "3 images in " in text
    report = json.loads((tmp_path / "out" / "convert_report.json").read_text())
    assert report["splits"]["train"]["classes"] == [
        {"id": 1, "name": "cat", "boxes": 1, "images": 1},
        {"id": 2, "name": "dog", "boxes": 2, "images": 2},
    ]
    assert text.startswith((tmp_path / "out" / "convert_report.txt").read_text())
    assert Image.open(tmp_path / "out" / "convert_histograms.png").width > 500
    back = ["convert", "--from=tfrecord", "--to=coco", f"--output={tmp_path}/back.json"]
    records = report["splits"]["train"]["records"]
    assert cli.main([*back, f"--records={records}", f"--label_map={report['label_map']}"]) == 0
    document = json.loads((tmp_path / "back.json").read_text())
    boxes = sorted(annotation["bbox"] for annotation in document["annotations"])
    assert boxes == [[0, 0, 32, 20], [4, 5, 8, 10], [8, 4, 16, 10]]


def test_a_rotated_photo_with_both_frames_and_numbers_that_agree(tmp_path, capsys):
    """The only image: 12 x 8 pixels as stored, and its annotation fits the upright photo."""
    (tmp_path / "images").mkdir()
    photo = examples.encoded(examples.picture(), "JPEG", exif=examples.orientation(6))
    (tmp_path / "images" / "a.jpg").write_bytes(photo)
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,8,12,cat,1,1,7,11\n")
    options = samples.SourceOptions(str(tmp_path / "images"), str(boxes))
    sample = samples.Sample("csv", options, str(boxes), 2)
    assert cli.main(arguments(sample, tmp_path / "out")) == 1
    error = capsys.readouterr().err
    assert "12 x 8 pixels as stored, 8 x 12 upright; the annotation gives 8 x 12" in error
    assert "if the boxes fit the upright image, add --exif apply" in error
    assert cli.main(arguments(sample, tmp_path / "out", "--exif=apply")) == 0
    assert "\n1 image in " in capsys.readouterr().out
    (values,) = samples.records(tmp_path / "out").values()
    assert (values["image/height"], values["image/width"]) == ([12], [8])


def test_faults_in_the_report(tmp_path, capsys):
    sample = samples.make(tmp_path, "csv", (4.0, 8.0, 14.0, 40.0))
    (tmp_path / "images" / "b.png").write_bytes(b"x")
    assert cli.main(arguments(sample, tmp_path / "out")) == 1
    captured = capsys.readouterr()
    assert "error: 2 faults of the source; nothing is written\n" in captured.err
    assert "\n  1 image: " in captured.err and "Or add --on_error skip" in captured.err
    assert "Remedy: correct the box, or add --clip_boxes" in captured.err
    options = ("--on_error=skip", "--clip_boxes", "--json", "--split=0.5,0.5")
    assert cli.main(arguments(sample, tmp_path / "out", *options)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "convert_report.json").read_text())
    assert [(row["kind"], row["action"], row["count"]) for row in printed["faults"]] == [
        ("undecodable_image", "skipped", 1), ("box_outside", "clipped", 1),
    ]  # fmt: skip
    text = (tmp_path / "out" / "convert_report.txt").read_text()
    assert "box_outside: boxes that extend beyond the image: 1 box, clipped to the image" in text
    assert cli.main(arguments(sample, tmp_path / "out", *options)) == 2
    assert "add --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "similar"),
    [
        (["Star", "circle", "star"], "'Star' and 'star'"),
        (["star", "stars", "bus", "car park", "carpark"], "'star' and 'stars', 'car park' and 'c"),
        (["star", "start", "bus", "best"], ""),
    ],
)
def test_classes_that_are_probably_one(names, similar):
    conversion = Conversion({}, "map.pbtxt", dict(enumerate(names, 1)), NOTHING, 0, 0, 0.0)
    *warnings, last = conversion_report.summary_lines(conversion)
    assert last == "label map: map.pbtxt" and len(warnings) == bool(similar)
    assert all(line.startswith("warning: ") and similar in line for line in warnings)


CSV = ("--from=csv", "--to=tfrecord", "--images=x", "--annotations=a", "--output_dir=y")


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--from=coco", "--to=coco"], 2, "--from coco --to coco is not supported"),
        (["--from=coco", "--to=tfrecord"], 2, "convert needs --images and --"),
        (["--from=tfrecord", "--to=coco"], 2, "convert needs --records and --output"),
        (["--from=tfrecord", "--to=coco", "--masks"], 2, "--masks has no effect with --to coco"),
        (["--from=tfrecord", "--to=coco", "--max_megapixels=1"], 2,
         "--max_megapixels has no effect with --to coco"),
        (["--from=csv", "--to=tfrecord", "--output=x"], 2, "--output has no effect with --to"),
        ([*CSV, "--quality=3"], 2, "--quality has no effect without --encode"),
        ([*CSV, "--runner_options=z"], 2, "--runner_options has no effect without --runner"),
        ([*CSV, "--jobs=0"], 2, "argument --jobs: '0' is not allowed: give 1 or more"),
        ([*CSV, "--num_shards=0"], 2, "num_shards is 0; allowed: 1 to 99,999"),
        (["--from=csv", "--to=tfrecord", "--images=.", "--annotations=a",
          "--output_dir="], 2, "output_dir is empty"),
        (["--from=tfrecord", "--to=coco", "--records=x", "--output=", "--label_map=m"], 2,
         "output is empty; name a JSON file"),
        ([*CSV, "--images=nowhere"], 2, "--images is 'nowhere': there is no such folder"),
        (["--from=tfrecord", "--to=coco", "--records=nowhere*", "--output=x.json",
          "--label_map=m"], 3, "matches no file"),
    ],
)  # fmt: skip
def test_refusals(given, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["convert", *given]) == code
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[3], pytest.param([1, 4, 9], marks=pytest.mark.exhaustive)])
def test_killed_and_resumed_with_the_same_bytes(forker, tmp_path, kills):
    sample = many(tmp_path, 200)
    given = ("--num_shards=20", "--jobs=1", "--split=0.7,0.3")
    whole = forker.command(*arguments(sample, tmp_path / "whole", *given))
    output = tmp_path / "out"
    for number in kills:
        run = forker.command(*arguments(sample, output, *given))
        mark = output / ".convert" / f"result-{number:05d}.json"
        while not mark.exists():
            assert run.poll() is None, run.output()
            time.sleep(0.002)
        run.signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        # On a slow machine the signal may come while shards are moved.
        is_publishing = (output / ".convert" / "publishing").exists()
        assert is_publishing or not list(output.glob("*.record-*[0-9]"))
    last = forker.command(*arguments(sample, output, *given))
    assert last.wait() == 0, last.output()
    assert whole.wait() == 0, whole.output()
    assert "of an earlier run kept" in last.output()
    report = {"convert_report.txt", "convert_report.json", "convert_histograms.png"}
    found, expected = (
        {name: value for name, value in content(folder).items() if name not in report}
        for folder in (output, tmp_path / "whole")
    )
    assert len(expected) == 43 and found == expected
