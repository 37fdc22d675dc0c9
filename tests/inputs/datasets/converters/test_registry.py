"""Every registered format: the same data set, the same faults, by file and line."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from inputs.datasets.converters import CONVERTERS, open_source, options_of
from inputs.datasets.source import ConversionError, SourceOptions
from tests.inputs.conversion import samples

FORMATS = sorted(CONVERTERS)
every_format = pytest.mark.parametrize("name", FORMATS)


def test_every_format_has_a_sample():
    assert sorted(samples.SAMPLES) == FORMATS


@every_format
def test_the_sample_gives_the_known_records(name, tmp_path):
    sample = samples.make(tmp_path, name)
    samples.convert(sample, tmp_path / "out")
    found = samples.records(tmp_path / "out")
    images = set(samples.OBJECTS)
    if name == "labelme":
        assert found["c"]["image/object/class/label"] == []
    assert set(found) == images
    for image, objects in samples.OBJECTS.items():
        assert samples.boxes_of(found[image]) == objects, image
        labels = {"cat": 1, "dog": 2}
        assert found[image]["image/object/class/label"] == [labels[kind] for kind, _ in objects]
        encoded = (tmp_path / "images" / f"{image}.png").read_bytes()
        assert found[image]["image/encoded"] == [encoded]
    assert samples.faults(tmp_path / "out") == []


# How the box of the cat becomes faulty, in ymin, xmin, ymax, xmax.
FAULTY = {
    "box_nan": (float("nan"), 8.0, 14.0, 24.0),
    "box_inverted": (14.0, 8.0, 4.0, 24.0),
    "box_degenerate": (4.0, 8.0, 4.0, 24.0),
    "box_outside": (4.0, 8.0, 14.0, 40.0),
}


@every_format
@pytest.mark.parametrize("kind", FAULTY)
def test_faulty_boxes_are_reported_by_file_and_line(name, kind, tmp_path):
    if name == "labelme" and kind == "box_inverted":
        pytest.skip("any two opposite corners are a rectangle of labelme")
    sample = samples.make(tmp_path, name, FAULTY[kind])
    with pytest.raises(ConversionError, match=kind) as caught:
        samples.convert(sample, tmp_path / "stopped")
    place = f"1 box: {sample.cat_file}, line {sample.cat_line}: "
    assert place in str(caught.value) and "Remedy: " in str(caught.value)
    assert "a.png" in str(caught.value)
    assert not list((tmp_path / "stopped").glob("train.record-?????-of-?????"))

    conversion = samples.convert(sample, tmp_path / "out", on_error="skip")
    (fault,) = samples.faults(tmp_path / "out")
    assert (fault["kind"], fault["action"]) == (kind, "dropped")
    assert (fault["file"], fault["line"]) == (sample.cat_file, sample.cat_line)
    assert conversion.tally["faults"][f"{kind} dropped"]["count"] == 1
    found = samples.records(tmp_path / "out")
    assert samples.boxes_of(found["a"]) == samples.OBJECTS["a"][1:]


@every_format
def test_boxes_are_clipped_if_asked(name, tmp_path):
    sample = samples.make(tmp_path, name, FAULTY["box_outside"])
    samples.convert(sample, tmp_path / "out", clip_boxes=True)
    found = samples.records(tmp_path / "out")
    assert samples.boxes_of(found["a"])[0] == ("cat", (4.0, 8.0, 14.0, 32.0))
    (fault,) = samples.faults(tmp_path / "out")
    assert (fault["kind"], fault["action"]) == ("box_outside", "clipped")


@every_format
def test_a_class_outside_of_the_label_map(name, tmp_path):
    sample = samples.make(tmp_path, name)
    label_map = tmp_path / "map.pbtxt"
    label_map.write_text('item { id: 2 name: "dog" }')
    options = {"label_map": str(label_map)}
    with pytest.raises(ConversionError, match=r"unknown_text: .*'cat'"):
        samples.convert(sample, tmp_path / "stopped", **options)
    samples.convert(sample, tmp_path / "out", on_error="skip", **options)
    found = samples.records(tmp_path / "out")
    assert [kind for kind, _ in samples.boxes_of(found["a"])] == ["dog"]
    reported = {(fault["kind"], fault["line"]) for fault in samples.faults(tmp_path / "out")}
    assert ("unknown_text", sample.cat_line) in reported
    assert not (tmp_path / "out" / "label_map.pbtxt").exists()


def _outside(path):
    path.rename(path.parents[1] / "elsewhere.png")
    path.symlink_to(path.parents[1] / "elsewhere.png")


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


FAULTY_FILES = {
    "no_image": lambda path: path.unlink(),
    "outside_folder": _outside,
    "special_file": _pipe,
    "truncated_image": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "undecodable_image": lambda path: path.write_bytes(b""),
    "unsupported_image": lambda path: path.write_bytes(samples.png(0, kind="TIFF")),
    "duplicate_image": lambda path: path.write_bytes((path.parent / "b.png").read_bytes()),
}


# Paths come from the format; the other faults are found by what all formats share.
OF_PATHS = ("no_image", "outside_folder", "special_file")
FAULTY_IN_FORMAT = [
    pytest.param(
        kind, name, marks=() if kind in OF_PATHS or name == "coco" else pytest.mark.exhaustive
    )
    for kind in FAULTY_FILES
    for name in FORMATS
]


@pytest.mark.parametrize(("kind", "name"), FAULTY_IN_FORMAT)
def test_faulty_images_are_reported_by_file(name, kind, tmp_path):
    sample = samples.make(tmp_path, name)
    FAULTY_FILES[kind](tmp_path / "images" / "a.png")
    output = tmp_path / "out"
    with pytest.raises(ConversionError, match=f": {kind}: "):
        samples.convert(sample, tmp_path / "stopped", duplicates="stop")
    samples.convert(sample, output, on_error="skip", duplicates="skip")
    (fault,) = samples.faults(output)
    assert (fault["kind"], fault["action"]) == (kind, "skipped")
    first = "a" if kind == "duplicate_image" else "b"
    assert set(samples.records(output)) == {first, "c"}
    # A copy is found at the second of two images.
    owner = samples.make(tmp_path / "again", name).cat_file.replace("again/", "")
    if kind != "duplicate_image":
        assert fault["file"] == owner


@every_format
def test_a_wrong_size_is_reported(name, tmp_path):
    if name in ("kitti", "open_images", "yolo"):
        pytest.skip("the format gives no size of images")
    sample = samples.make(tmp_path, name)
    (tmp_path / "images" / "a.png").write_bytes(samples.png(0, height=21))
    with pytest.raises(ConversionError, match=r"size_mismatch.*32 x 20.*32 x 21"):
        samples.convert(sample, tmp_path / "out")


@every_format
def test_files_that_are_not_there_are_refused_by_option(name, tmp_path):
    sample = samples.make(tmp_path, name)
    for field in options_of(name).required:
        given = {**sample.options.__dict__, field: str(tmp_path / "nowhere")}
        changed = sample._replace(options=SourceOptions(**given))
        with pytest.raises(ConfigError, match=f"--{field} is .*nowhere.*there is no such"):
            samples.convert(changed, tmp_path / "out")
        given[field] = ""
        with pytest.raises(ConfigError, match=f"--from {name} needs --{field}|--{field} is ''"):
            samples.convert(sample._replace(options=SourceOptions(**given)), tmp_path / "out")


@every_format
def test_options_without_effect_are_refused(name, tmp_path):
    sample = samples.make(tmp_path, name)
    known = {*options_of(name).required, *options_of(name).optional}
    for field, value in (("classes", "x"), ("image_labels", "x"), ("min_score", 0.0)):
        if field not in known:
            given = SourceOptions(**{**sample.options.__dict__, field: value})
            with pytest.raises(ConfigError, match=f"--{field} has no effect with --from {name}"):
                open_source(name, given)
    if not options_of(name).masks:
        with pytest.raises(ConfigError, match="--masks has no effect"):
            open_source(name, sample.options, masks=True)


@every_format
def test_a_source_that_is_no_text_is_refused_by_line(name, tmp_path):
    sample = samples.make(tmp_path, name)
    path = pathlib.Path(sample.cat_file)
    content = path.read_bytes().split(b"\n")
    content[sample.cat_line - 1] += b" \xff\xfe"
    path.write_bytes(b"\n".join(content))
    with pytest.raises((ConfigError, ConversionError), match="broken_source") as caught:
        samples.convert(sample, tmp_path / "out")
    assert f"{sample.cat_file}, line {sample.cat_line}: " in str(caught.value)


TEXTS = [b"", b"\0", b"\xff", b"-", b"9" * 400, b"1e999", b"nan", b"null", b"[", b"{}", b'"',
         b"<a>", b"../", b"\n", b"\xe2\x80\xae", b'"\\ud800"', b"true", b"[" * 3000]  # fmt: skip


def _damaged(content, random):
    """With a few bytes changed, left out, or replaced by a text that parsers may stumble over."""
    for _ in range(int(random.integers(1, 4))):
        start = int(random.integers(0, max(len(content), 1)))
        length = int(random.choice([0, 1, 1, 3, 20]))
        text = TEXTS[int(random.integers(len(TEXTS)))]
        content = content[:start] + text + content[start + length :]
    return content


@every_format
@pytest.mark.parametrize("seeds", [4, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_damage_anywhere_gives_records_or_a_fault(name, seeds, tmp_path):
    sample = samples.make(tmp_path, name)
    folder = tmp_path / "images"
    files = [pathlib.Path(sample.cat_file), folder / "a.png"]
    files += [path for path in (tmp_path / "data.yaml", tmp_path / "labels.csv") if path.exists()]
    for seed in range(seeds):
        random = np.random.default_rng((seed, len(name)))
        path = files[(seed // 2) % len(files)]
        sound = path.read_bytes()
        path.write_bytes(_damaged(sound, random))
        masks = options_of(name).masks and seed % 3 == 0
        try:
            samples.convert(sample, tmp_path / "out", on_error="skip", masks=masks, overwrite=True)
        except (ConfigError, ConversionError) as error:
            assert str(error) and len(str(error)) < 10_000, seed
        path.write_bytes(sound)
