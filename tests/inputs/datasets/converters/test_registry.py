"""Every registered format: the same data set, the same faults, by file and line."""

import os
import pathlib

import pytest

from estimator_det.errors import UsageError
from inputs.datasets.converters import CONVERTERS, open_source
from inputs.datasets.source import ConversionError, SourceOptions
from tests.fuzz.mutate import mutate_bytes, mutate_text
from tests.inputs.conversion import samples

FORMATS = sorted(CONVERTERS)
every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
def test_the_sample_gives_the_known_records(name, tmp_path):
    sample = samples.make(tmp_path, name)
    samples.convert(sample, tmp_path / "out")
    found = samples.records(tmp_path / "out")
    assert set(found) == set(samples.OBJECTS)
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


def fault_of(sample, root, kind, **options):
    """The fault that stops a conversion, and that is skipped if asked."""
    with pytest.raises(ConversionError, match=f": {kind}: .*Remedy: ") as caught:
        samples.convert(sample, root / "stopped", **options)
    assert not (root / "stopped").exists()
    conversion = samples.convert(sample, root / "out", on_error="skip", **options)
    (fault,) = [fault for fault in samples.faults(root / "out") if fault["kind"] == kind]
    assert conversion.tally["faults"][f"{kind} {fault['action']}"]["count"] == 1
    assert f"1 {'box' if fault['action'] == 'dropped' else 'image'}: {fault['file']}" in str(
        caught.value
    )
    return fault


# All formats share the rules of boxes.
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "box_outside") for name in FORMATS), *(("csv", k) for k in FAULTY)]
)
def test_faulty_boxes_are_reported_by_file_and_line(name, kind, tmp_path):
    sample = samples.make(tmp_path, name, FAULTY[kind])
    fault = fault_of(sample, tmp_path, kind)
    assert (fault["file"], fault["line"]) == (sample.cat_file, sample.cat_line)
    assert "'a.png': " in fault["message"]
    found = samples.records(tmp_path / "out")
    assert samples.boxes_of(found["a"]) == samples.OBJECTS["a"][1:]
    if kind == "box_outside":
        samples.convert(sample, tmp_path / "out", clip_boxes=True, overwrite=True)
        clipped = samples.records(tmp_path / "out")["a"]
        assert samples.boxes_of(clipped)[0] == ("cat", (4.0, 8.0, 14.0, 32.0))
        assert samples.faults(tmp_path / "out")[0]["action"] == "clipped"


@every_format
def test_a_class_outside_of_the_label_map(name, tmp_path):
    sample = samples.make(tmp_path, name)
    label_map = tmp_path / "map.pbtxt"
    label_map.write_text('item { id: 2 name: "dog" }')
    samples.convert(sample, tmp_path / "out", on_error="skip", label_map=str(label_map))
    found = samples.records(tmp_path / "out")
    assert [kind for kind, _ in samples.boxes_of(found["a"])] == ["dog"]
    reported = {(fault["kind"], fault["line"]) for fault in samples.faults(tmp_path / "out")}
    assert ("unknown_text", sample.cat_line) in reported
    assert (tmp_path / "out" / "label_map.pbtxt").read_text() == label_map.read_text()


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


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in FAULTY_FILES for name in (FORMATS if kind in OF_PATHS else ["coco"])],
)
def test_faulty_images_are_reported_by_file(name, kind, tmp_path):
    sample = samples.make(tmp_path, name)
    FAULTY_FILES[kind](tmp_path / "images" / "a.png")
    fault = fault_of(sample, tmp_path, kind, duplicates="stop")
    assert fault["action"] == "skipped"
    is_copy = kind == "duplicate_image"  # found at the second of two images
    assert set(samples.records(tmp_path / "out")) == {"a" if is_copy else "b", "c"}
    assert is_copy or fault["file"] == sample.cat_file


# The other formats give no size of images.
@pytest.mark.parametrize("name", sorted({*FORMATS} - {"kitti", "open_images", "yolo"}))
def test_a_wrong_size_is_reported(name, tmp_path):
    sample = samples.make(tmp_path, name)
    (tmp_path / "images" / "a.png").write_bytes(samples.png(0, height=21))
    with pytest.raises(ConversionError, match=r"size_mismatch.*32 x 20.*32 x 21"):
        samples.convert(sample, tmp_path / "out")


@every_format
def test_files_that_are_not_there_are_refused_by_option(name, tmp_path):
    sample = samples.make(tmp_path, name)
    for field in CONVERTERS.get(name).required:
        given = {**sample.options.__dict__, field: str(tmp_path / "nowhere")}
        changed = sample._replace(options=SourceOptions(**given))
        with pytest.raises(UsageError, match=f"--{field} is .*nowhere.*there is no such"):
            samples.convert(changed, tmp_path / "out")
        given[field] = ""
        with pytest.raises(UsageError, match=f"--from {name} needs --{field}|--{field} is ''"):
            samples.convert(sample._replace(options=SourceOptions(**given)), tmp_path / "out")


@every_format
def test_options_without_effect_are_refused(name, tmp_path):
    sample = samples.make(tmp_path, name)
    known = {*CONVERTERS.get(name).required, *CONVERTERS.get(name).optional}
    for field, value in (("classes", "x"), ("image_labels", "x"), ("min_score", 0.0)):
        if field not in known:
            given = SourceOptions(**{**sample.options.__dict__, field: value})
            with pytest.raises(UsageError, match=f"--{field} has no effect with --from {name}"):
                open_source(name, given)
    if not CONVERTERS.get(name).masks:
        with pytest.raises(UsageError, match="--masks has no effect"):
            open_source(name, sample.options, masks=True)


@every_format
def test_a_source_that_is_no_text_is_refused_by_line(name, tmp_path):
    sample = samples.make(tmp_path, name)
    path = pathlib.Path(sample.cat_file)
    content = path.read_bytes().split(b"\n")
    content[sample.cat_line - 1] += b" \xff\xfe"
    path.write_bytes(b"\n".join(content))
    with pytest.raises((UsageError, ConversionError), match="broken_source") as caught:
        samples.convert(sample, tmp_path / "out")
    assert f"{sample.cat_file}, line {sample.cat_line}: " in str(caught.value)


@every_format
@pytest.mark.parametrize("seeds", [4, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_damage_anywhere_gives_records_or_a_fault(name, seeds, tmp_path):
    sample = samples.make(tmp_path, name)
    files = [pathlib.Path(sample.cat_file), tmp_path / "images" / "a.png"]
    files += [path for path in (tmp_path / "data.yaml", tmp_path / "labels.csv") if path.exists()]
    for seed in range(seeds):
        path = files[(seed // 2) % len(files)]
        sound = path.read_bytes()
        is_text = path.suffix != ".png" and seed % 2
        path.write_bytes(
            mutate_text(sound.decode(), seed).encode() if is_text else mutate_bytes(sound, seed)
        )
        masks = CONVERTERS.get(name).masks and seed % 3 == 0
        try:
            samples.convert(sample, tmp_path / "out", on_error="skip", masks=masks, overwrite=True)
        except (UsageError, ConversionError) as error:
            assert str(error) and len(str(error)) < 10_000, seed
        path.write_bytes(sound)
