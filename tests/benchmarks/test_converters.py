"""The measurement of conversions, on a few small images."""

from __future__ import annotations

import pathlib

from benchmarks.converters import __main__ as program
from estimator_det.compat import tf


def test_loops_and_conversions_write_all_images(tmp_path: pathlib.Path) -> None:
    found = program.speed(str(tmp_path), 3, 40, 1)
    assert sorted(found) == [
        "bare loop, decode", "bare loop, header", "convert, decode", "convert, header",
    ]  # fmt: skip
    assert all(cost >= 0 for cost in found.values())
    images = [path.read_bytes() for path in sorted((tmp_path / "speed").rglob("*.jpg"))]
    copies = tf.data.TFRecordDataset(str(tmp_path / "copy.record"))
    assert [record.numpy() for record in copies] == images and len(set(images)) == 3
    (shard,) = (tmp_path / "out").glob("train.record-*")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(shard))]
    encoded = [
        tf.train.Example.FromString(one).features.feature["image/encoded"].bytes_list.value[0]
        for one in records
    ]
    assert encoded == images


def test_the_fastest_of_all_runs_counts(monkeypatch) -> None:
    now = [0.0]
    lasts = {"a": iter([3.0, 1.0, 2.0]), "b": iter([4.0, 5.0, 6.0])}

    def run(name: str) -> None:
        now[0] += next(lasts[name])

    monkeypatch.setattr(program.time, "process_time", lambda: now[0])
    runs = {name: (lambda name=name: run(name)) for name in lasts}
    assert program.milliseconds(runs, 2, 3) == {"a": 500.0, "b": 2000.0}
