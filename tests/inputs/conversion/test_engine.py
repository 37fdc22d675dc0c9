"""Shards, splits, copies, processes, and conversions that are interrupted anywhere."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any, Dict, List

import pytest

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs.conversion import engine, shards
from inputs.conversion.images import ImageOptions
from inputs.conversion.index import Index
from inputs.conversion.splits import Split, parse_splits
from inputs.datasets.source import ConversionError, SourceOptions
from tests.inputs.conversion import samples

HEADER = ImageOptions(verify="header")


def many(root: pathlib.Path, count: int, copies: int = 0) -> samples.Sample:
    """A CSV data set of `count` images; the last `copies` have the content of the first ones."""
    folder = root / "images"
    folder.mkdir()
    lines = ["filename,class,xmin,ymin,xmax,ymax"]
    for number in range(count):
        seed = number - (count - copies) if number >= count - copies else number
        (folder / f"{number:03d}.png").write_bytes(samples.png(seed, 8, 8))
        lines.append(f"{number:03d}.png,cat,1,1,{number % 6 + 2},7")
    path = root / "boxes.csv"
    path.write_text("\n".join(lines))
    return samples.Sample("csv", SourceOptions(str(folder), str(path)), str(path), 2)


def content(output: pathlib.Path) -> Dict[str, bytes]:
    """All files but the report of a conversion."""
    assert not (output / engine.WORK_DIR).exists()
    return {path.name: path.read_bytes() for path in output.iterdir()}


def test_shards_are_named_and_hold_the_images_in_order(tmp_path):
    sample = many(tmp_path, 10)
    output = tmp_path / "out"
    conversion = samples.convert(sample, output, num_shards=4, image=HEADER)
    names = [f"train.record-{shard:05d}-of-00004" for shard in range(4)]
    others = ["label_map.pbtxt", "faults.jsonl", ".estimator-det-convert"]
    assert sorted(content(output)) == sorted([*names, *others])
    counts = [len(list(tf.data.TFRecordDataset(str(output / name)))) for name in names]
    assert counts == [2, 3, 2, 3]
    assert list(samples.records(output)) == [f"{number:03d}" for number in range(10)]
    assert conversion.patterns == {"train": str(output / "train.record-?????-of-00004")}
    assert (output / "label_map.pbtxt").read_text() == 'item {\n  name: "cat"\n  id: 1\n}\n'


@pytest.mark.parametrize("images, most", [(1, 1), (2_000, 1), (20_000, 4)])
def test_a_process_starts_only_for_much_more_work_than_its_start(images, most):
    image_index = Index(None, images, 40_000 * images, 0, set(), {}, {})
    assert engine._most_processes(image_index) == most


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_number_of_processes_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "BYTES_PER_PROCESS", 1)
    sample = many(tmp_path, 12)
    options = {"num_shards": 5, "image": HEADER, "splits": parse_splits("0.5,0.5")}
    samples.convert(sample, tmp_path / "one", **options)
    samples.convert(sample, tmp_path / "two", jobs=2, **options)
    assert content(tmp_path / "one") == content(tmp_path / "two")


class Interrupted(BaseException):
    pass


class Power:
    """Fails at one of the changes of files that a conversion makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self._replace = os.replace
        patch.setattr(os, "replace", self._replace_unless_interrupted)

    def _replace_unless_interrupted(self, *arguments: Any) -> None:
        if self.left == 0:
            raise Interrupted
        self.left -= 1
        self._replace(*arguments)


def stop_while_naming(
    sample: samples.Sample, output: pathlib.Path, patch: pytest.MonkeyPatch
) -> None:
    """Interrupts a conversion to 3 shards when some, but not all, have their names."""
    power = Power(patch)
    for place in range(100):
        power.left = place
        try:
            samples.convert(sample, output, num_shards=3, image=HEADER)
        except Interrupted:
            if list(output.glob("*-of-00003")):
                break
    power.left = -1


def test_interrupted_anywhere_it_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    sample = many(tmp_path, 6)
    options = {"num_shards": 3, "image": HEADER, "splits": parse_splits("0.6,0.4")}
    samples.convert(sample, tmp_path / "whole", **options)
    expected = content(tmp_path / "whole")
    power = Power(monkeypatch)
    places = 0
    for place in range(100):
        output = tmp_path / f"out{place}"
        power.left = place
        try:
            samples.convert(sample, output, **options)
        except Interrupted:
            places += 1
            assert len(list(output.glob("*.record-*[0-9]"))) in (0, *range(1, 7))
        else:
            break
        power.left = -1
        samples.convert(sample, output, **options)
        assert content(output) == expected, place
    assert places > 12  # three results, six names, and others


def test_finished_shards_are_kept_and_others_made_again(tmp_path, monkeypatch):
    sample = many(tmp_path, 6)
    options: Dict[str, Any] = {"num_shards": 3, "image": HEADER}
    output = tmp_path / "out"
    made: List[int] = []
    real = shards.convert_image

    def counted(image: Any, *others: Any) -> Any:
        made.append(int(image.image[:3]))
        if len(made) == 5:
            raise Interrupted
        return real(image, *others)

    monkeypatch.setattr(shards, "convert_image", counted)
    with pytest.raises(Interrupted):
        samples.convert(sample, output, **options)
    assert made == [0, 1, 2, 3, 4]
    # A changed image makes its shard again; a file that was cut short, too.
    (tmp_path / "images" / "001.png").write_bytes(samples.png(77, 8, 8))
    conversion = samples.convert(sample, output, **options)
    assert made[5:] == [0, 1, 4, 5] and conversion.num_resumed == 1
    assert samples.records(output)["001"]["image/encoded"] == [samples.png(77, 8, 8)]


def test_other_options_use_nothing_of_a_conversion_that_was_interrupted(tmp_path, monkeypatch):
    sample = many(tmp_path, 6)
    output = tmp_path / "out"
    for options in ({"num_shards": 2}, {"num_shards": 3, "clip_boxes": True}):
        stop_while_naming(sample, output, monkeypatch)
        again = samples.convert(sample, output, image=HEADER, **options)
        assert again.num_resumed == 0
        assert len(list(output.glob("train.record*"))) == options["num_shards"]
        assert len(samples.records(output)) == 6
        shutil.rmtree(output)
    stop_while_naming(sample, output, monkeypatch)
    (tmp_path / "images" / "002.png").unlink()
    with pytest.raises(ConversionError, match=r"1 image: .*no_image"):
        samples.convert(sample, output, num_shards=3, image=HEADER)
    assert not list(output.glob("[!.]*"))


def test_a_conversion_killed_in_its_last_step_can_be_made_again(tmp_path, monkeypatch):
    """All files have their names, and the temporary ones are left."""
    sample = many(tmp_path, 6)
    output = tmp_path / "out"

    remove = shutil.rmtree

    def keep_temporary_files(folder: str, **options: Any) -> None:
        if folder.endswith(engine.WORK_DIR):
            raise Interrupted
        remove(folder, **options)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(shutil, "rmtree", keep_temporary_files)
        samples.convert(sample, output, num_shards=3, image=HEADER)
    assert len(samples.records(output)) == 6
    with pytest.raises(FileExistsError, match="add --overwrite"):
        samples.convert(sample, output, num_shards=3, image=HEADER)
    samples.convert(sample, output, num_shards=3, image=HEADER, overwrite=True)
    assert len(samples.records(output)) == 6


def test_earlier_records_are_replaced_only_if_asked(tmp_path):
    sample = many(tmp_path, 3)
    output = tmp_path / "out"
    samples.convert(sample, output, num_shards=3, image=HEADER)
    with pytest.raises(FileExistsError, match=r"record-00000-of-00003 and 2 more files of"):
        samples.convert(sample, output, num_shards=1, image=HEADER)
    assert len(samples.records(output)) == 3 and not (output / ".convert").exists()
    samples.convert(sample, output, num_shards=1, image=HEADER, overwrite=True)
    assert [path.name for path in output.glob("train*")] == ["train.record-00000-of-00001"]
    with pytest.raises(FileExistsError, match=r"contains train\.record-00000-of-00001 of the"):
        samples.convert(sample, output, image=HEADER)
    # Another split of the same classes may follow.
    samples.convert(sample, output, splits=(Split("val"),), image=HEADER)
    assert len(samples.records(output, "val")) == 3


def test_two_conversions_into_one_folder_are_refused(tmp_path):
    sample = many(tmp_path, 3)
    output = tmp_path / "out"

    def run(job: Any) -> Any:
        with pytest.raises(ConversionError, match=r"another process converts into"):
            samples.convert(sample, output, image=HEADER)
        return engine._run(job, jobs=1)

    samples.convert(sample, output, image=HEADER, run=run)


def test_a_split_by_ratio_keeps_copies_together(tmp_path):
    sample = many(tmp_path, 60, copies=20)
    output = tmp_path / "out"
    conversion = samples.convert(
        sample, output, splits=parse_splits("train=0.5,val=0.3,test=0.2"), image=HEADER
    )
    parts = [set(samples.records(output, name)) for name in ("train", "val", "test")]
    assert set.union(*parts) == {f"{number:03d}" for number in range(60)}
    assert sum(map(len, parts)) == 60 and min(map(len, parts)) > 2
    for number in range(20):
        (one,) = [part for part in parts if f"{number:03d}" in part]
        assert f"{number + 40:03d}" in one
    assert conversion.tally["faults"]["duplicate_image kept"]["count"] == 20


def test_a_split_by_lists(tmp_path):
    sample = many(tmp_path, 6)
    (tmp_path / "train.txt").write_text("000.png\n001\n002  1\n")  # the last as in PASCAL VOC
    (tmp_path / "val.txt").write_text("images/004.png\n\n003\n")
    splits = parse_splits(f"train={tmp_path}/train.txt,val={tmp_path}/val.txt")
    with pytest.raises(ConversionError, match=r"val.txt, line 1: no_split: .*'images/004.png'"):
        samples.convert(sample, tmp_path / "stopped", splits=splits, image=HEADER)
    (tmp_path / "val.txt").write_text("004.png\n003.xml\n")
    conversion = samples.convert(sample, tmp_path / "out", splits=splits, image=HEADER)
    assert list(samples.records(tmp_path / "out", "train")) == ["000", "001", "002"]
    assert list(samples.records(tmp_path / "out", "val")) == ["003", "004"]
    assert conversion.num_unlisted == 1


def test_no_image_is_in_two_splits(tmp_path):
    sample = many(tmp_path, 4, copies=1)
    (tmp_path / "a.txt").write_text("000\n001\n")
    (tmp_path / "b.txt").write_text("002\n001\n")
    splits = parse_splits(f"a={tmp_path}/a.txt,b={tmp_path}/b.txt")
    with pytest.raises(UsageError, match=r"b.txt, line 2: .*'001' is also in split a \(.*line 2"):
        samples.convert(sample, tmp_path / "out", splits=splits, image=HEADER)
    (tmp_path / "b.txt").write_text("002\n001.png\n")
    with pytest.raises(UsageError, match=r"'001.png' is in several splits"):
        samples.convert(sample, tmp_path / "out", splits=splits, image=HEADER)
    # The copy of an image must not get into another split either.
    (tmp_path / "b.txt").write_text("002\n003\n")
    with pytest.raises(ConversionError, match=r"'003.png' has the content of '000.png', .*split a"):
        samples.convert(sample, tmp_path / "out", splits=splits, image=HEADER)
    samples.convert(sample, tmp_path / "out", splits=splits, image=HEADER, on_error="skip")
    assert list(samples.records(tmp_path / "out", "b")) == ["002"]


def test_the_label_map_in_the_folder_is_not_replaced_silently(tmp_path):
    sample = many(tmp_path, 3)
    output = tmp_path / "out"
    output.mkdir()
    (output / "label_map.pbtxt").write_text('item { id: 5 name: "cat" } item { id: 6 name: "x" }')
    with pytest.raises(UsageError, match=r"has other classes than the source: add --label_map"):
        samples.convert(sample, output, image=HEADER)
    samples.convert(sample, output, image=HEADER, label_map=str(output / "label_map.pbtxt"))
    assert samples.records(output)["000"]["image/object/class/label"] == [5]
    (tmp_path / "map.pbtxt").write_text('item { id: 1 name: "car" }')
    with pytest.raises(UsageError, match=r"none of the classes of the source: \['cat'\]"):
        samples.convert(sample, tmp_path / "out2", label_map=str(tmp_path / "map.pbtxt"))


def test_all_faults_are_reported_before_the_conversion_stops(tmp_path):
    sample = many(tmp_path, 8, copies=1)
    (tmp_path / "images" / "001.png").unlink()
    (tmp_path / "images" / "003.png").unlink()
    (tmp_path / "images" / "004.png").write_bytes(b"damage")
    table = (tmp_path / "boxes.csv").read_text().replace("cat,1,1,2,7", "cat,5,1,2,7")
    table = table.replace("006.png,cat,5", "006.png,cat,five")
    (tmp_path / "boxes.csv").write_text(table.replace("cat,1,1,4,7", "cat,1,1,9,7"))
    output = tmp_path / "out"
    (output / engine.WORK_DIR).mkdir(parents=True)
    (output / engine.WORK_DIR / "train.record-00001-of-00002").write_bytes(b"of a killed run")
    options = {"num_shards": 2, "splits": parse_splits("0.5,0.5"), "duplicates": "skip"}
    with pytest.raises(ConversionError) as caught:
        samples.convert(sample, output, **options)
    lines = str(caught.value).replace(str(tmp_path), "").splitlines()
    assert lines[0] == "6 faults of the source; nothing is written"
    starts = [
        "  1 box: /boxes.csv, line 8: broken_source: xmin is 'five'",
        "  2 images, the first: /boxes.csv, line 3: no_image: the image '001.png' cannot",
        "  1 image: /boxes.csv, line 6: undecodable_image: '004.png'",
        "  1 box: /boxes.csv, line 2: box_inverted: '000.png'",
        "  1 box: /boxes.csv, line 4: box_outside: '002.png'",
    ]
    assert [line[: len(start)] for line, start in zip(lines[1:], starts)] == starts
    assert lines[6:] == ["Or add --on_error skip, which skips 3 of 7 images and drops 3 of 4 boxes"]
    assert list(output.iterdir()) == []
    samples.convert(sample, output, on_error="skip", **options)


@pytest.mark.parametrize(
    ("cats", "message"),
    [
        ([("cat", ["x"] * 4)], "^no object is left. The first fault: .*a.txt, line 2: broken_sou"),
        ([], "no object with a class; name the classes by"),
        (None, "label_2 gives no image of the format kitti. The first fault: .*no_image"),
    ],
)
def test_a_source_that_leaves_nothing_is_refused(tmp_path, cats, message):
    samples.write_images(tmp_path / "images")
    sample = samples.kitti(tmp_path, {"a": cats or []})
    if cats is None:
        (tmp_path / "images" / "a.png").unlink()
    with pytest.raises((UsageError, ConversionError), match=message):
        samples.convert(sample, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out").exists()


def test_a_remote_output_folder_is_refused():
    with pytest.raises(UsageError, match="conversion writes to local folders"):
        engine.ConvertOptions("csv", SourceOptions(), output_dir="gs://b/c")
