"""`detect --runner`; on Beam itself where apache-beam is installed, else on a stand-in."""

import dataclasses
import json
import os
import re
import sys
import types

import numpy as np
import pytest
from PIL import Image

import exporters
from estimator_det.compat import tf
from estimator_det.files import ownership
from estimator_det.programs import cli
from exporters import detect_shards
from inputs.conversion import beam_pipeline

LEAST = "0.02"  # score
TWO_WORKERS = "--direct_num_workers=2 --direct_running_mode=multi_processing"


class _RunInference:
    def __init__(self, handler):
        self._handler, self._model = handler, handler.load_model()

    def __rrshift__(self, label):
        return self

    def __call__(self, shard):
        assert self._handler.batch_elements_kwargs() == {"max_batch_size": 1}
        self._handler.run_inference([shard], self._model)


@pytest.fixture(
    params=["stand-in", pytest.param("Beam", marks=[pytest.mark.slow, pytest.mark.exhaustive])]
)
def runner(request, monkeypatch):
    """Where the pipeline runs."""
    if request.param == "Beam":
        pytest.importorskip("apache_beam", exc_type=ImportError)
        yield
        return
    base = types.SimpleNamespace(ModelHandler=object, RunInference=_RunInference)
    for name in ("apache_beam", "apache_beam.ml"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())
    inference = types.SimpleNamespace(base=base)
    monkeypatch.setitem(sys.modules, "apache_beam.ml.inference", inference)
    monkeypatch.setattr(
        beam_pipeline,
        "make_pipeline",
        lambda name, options: lambda shards, transform: list(map(transform, shards)),
    )
    yield
    del sys.modules["exporters.beam_detect"], exporters.beam_detect  # it has the stand-in


@pytest.fixture(scope="module")
def photos(pictures, tmp_path_factory):
    """Three shards of two images and a broken one."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(9):
        Image.fromarray(np.roll(pictures[i % 2], i, 0)).save(folder / f"{i}.png")
    for i in (1, 3, 8):
        path = folder / f"{i}.png"
        path.write_bytes(path.read_bytes()[:100])
    (folder / "notes.txt").touch()
    return folder


def _detect(exported, output, *arguments):
    command = ["detect", str(exported), "--output_dir", str(output)]
    return cli.main([*command, "--threshold", LEAST, *map(str, arguments)])


def _lines(paths):
    return [json.loads(line) for path in sorted(paths) for line in path.read_text().splitlines()]


@pytest.mark.filterwarnings("ignore")  # of Beam
def test_shards_have_the_detections_of_detect(runner, exported, photos, pictures, tmp_path, capsys):
    assert _detect(exported, tmp_path / "one", photos, "--draw=none") == 1
    (expected,) = [_lines((tmp_path / "one").glob("detections.jsonl"))]
    output = tmp_path / "many"
    command = ("--runner=DirectRunner", "--num_shards=3", "--runner_options", TWO_WORKERS)
    command += ("--save_annotations", "tfrecord")
    capsys.readouterr()
    assert _detect(exported, output, f"{photos}/*", *command) == 1
    shards = sorted(output.glob("detections.jsonl-*-of-00003"))
    lines = _lines(shards)
    assert [each["file"] for each in lines] == [each["file"] for each in expected]
    good, bad = ([each for each in lines if ("error" in each) == wrong] for wrong in (False, True))
    assert good == [each for each in expected if "error" not in each] and len(good) == 6
    # A broken image in each shard is counted and listed.
    assert [sum("error" in each for each in _lines([shard])) for shard in shards] == [1, 1, 1]
    assert _lines([output / "bad_images.jsonl"]) == bad
    assert all(f"{each['file']} cannot be read" in each["error"] for each in bad)
    printed = capsys.readouterr()
    assert "9 images, " in printed.out and "1 file skipped, not images by name" in printed.err
    assert f"3 images cannot be used: {output}/bad_images.jsonl" in printed.err

    # Only an incomplete shard is made again.
    times = [os.stat(shard).st_mtime_ns for shard in shards]
    shards[1].unlink()
    assert _detect(exported, output, f"{photos}/*", *command) == 1
    assert "in 3 shards, 2 of them by an earlier run" in capsys.readouterr().out
    again = [os.stat(shard).st_mtime_ns for shard in shards]
    assert [a == b for a, b in zip(times, again)] == [True, False, True]
    assert _lines(shards) == lines
    drafts = [path.name for path in sorted((output / "annotations").glob("*"))]
    assert drafts == [f"detections.record-0000{i}-of-00003" for i in range(3)] + ["label_map.pbtxt"]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--num_shards=2", "x"], "--num_shards has no effect without --runner"),
        ([], "give images, videos or folders of images"),
        (["--runner=DirectRunner"], "give either images or --records PATTERN"),
        (["--runner=DirectRunner", "a.mp4"], "--runner is for images; leave a.mp4 out"),
        (["--runner=DirectRunner", "x", "--save_annotations=coco"], "with --runner give tfrecord"),
    ],
)
def test_refusals(tmp_path, capsys, arguments, text):
    assert _detect(tmp_path, tmp_path / "out", *arguments) == 2
    assert text in capsys.readouterr().err


def test_remote_images(exported, photos, tmp_path):
    """TensorFlow's memory file system stands in for a bucket."""
    remote = f"ram://{tmp_path.name}"
    for path in photos.iterdir():
        with tf.io.gfile.GFile(f"{remote}/photos/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    for pattern in (f"{remote}/photos", f"{remote}/photos/*"):
        paths, others = detect_shards.list_files([pattern])
        assert paths == [f"{remote}/photos/{i}.png" for i in range(9)]
        assert others == [f"{remote}/photos/notes.txt"]
    with pytest.raises(FileNotFoundError, match=r"photos/z\* matches no image file"):
        detect_shards.list_files([f"{remote}/photos/z*"])
    passes = detect_shards.Filter(0.0)
    job = detect_shards.DetectionJob(str(exported), f"{remote}/a", 2, passes, saves_records=True)
    first, second = detect_shards.divided([*paths[:5], str(tmp_path / "gone.png")], 2)
    assert [first.paths, second.paths[:2]] == [tuple(paths[:3]), tuple(paths[3:5])]
    detector = detect_shards.Detector(exported)
    assert detect_shards.read_result(job, first) is None
    result = detect_shards.detect_shard(job, first, detector)
    assert (result.num_images, len(result.failed)) == (3, 1)
    assert detect_shards.read_result(job, first) == result
    for changes in ({"passes": detect_shards.Filter(0.1)}, {"version": "of another model"}):
        assert detect_shards.read_result(dataclasses.replace(job, **changes), first) is None
    with pytest.raises(FileExistsError, match="annotations exists, and detect is not known"):
        detect_shards.check_output(job)
    ownership.mark(job.output_dir, "detect")
    detect_shards.check_output(job)
    with pytest.raises(FileExistsError, match="another number of shards than 3"):
        detect_shards.check_output(dataclasses.replace(job, num_shards=3))
    lost = detect_shards.detect_shard(job, second, detector).failed[-1]
    assert re.search(r"gone.png cannot be read: .*: no such file", lost["error"])

    # Drafts of labels are records, and images of records give the same detections.
    with tf.io.gfile.GFile(job.file(detect_shards.RECORDS_FILE, 0), "rb") as file:
        content = file.read()
    drafts = tmp_path / "drafts.record"
    with open(drafts, "wb") as file:  # the last record is damaged
        file.write(content + content[:-1] + bytes([content[-1] ^ 1]))
    options = {"output_dir": f"{remote}/b", "num_shards": 1, "has_records": True}
    read = dataclasses.replace(job, **options, saves_records=False)
    detect_shards.detect_shard(read, detect_shards.Shard(0, (str(drafts),)), detector)
    lines = _remote_lines(read, 0)
    assert [each["record"] for each in lines] == [0, 1, 2, 3]
    assert "fail their checksum" in lines[3]["error"]
    expected = [each["detections"] for each in _remote_lines(job, 0) if "error" not in each]
    assert [each["detections"] for each in lines[:2]] == expected
    assert [each["file"] for each in lines[:2]] == [paths[0], paths[2]]


def _remote_lines(job, shard):
    with tf.io.gfile.GFile(job.file("detections.jsonl", shard)) as file:
        return [json.loads(line) for line in file.read().splitlines()]
