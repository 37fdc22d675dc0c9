"""Videos, with and without PyAV."""

from __future__ import annotations

import json
import pathlib
from typing import Dict

import numpy as np
import pytest

from estimator_det.programs import cli
from exporters import formats, video
from exporters.loaded_model import LoadedModel

SIZE = (49, 65)  # height and width


def _write_clip(path: pathlib.Path) -> None:
    """A clip of 5 gray frames whose times are not regular: 0, 1, 4, 9 and 16 tenths of a second."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as target:
        stream = target.add_stream("mpeg4", rate=10)
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for i in range(5):
            pixels = np.full([*SIZE, 3], 40 * i, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = i * i
            target.mux(stream.encode(frame))
        target.mux(stream.encode())


class _Model(LoadedModel):
    """Detects a circle in the middle of every image."""

    def __init__(self, path: str) -> None:
        super().__init__(path, {1: "circle", 2: "square"}, "")

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        return {
            "num_detections": np.float32([2]),
            "detection_boxes": np.float32([[[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]]),
            "detection_scores": np.float32([[0.9, 0.8]]),
            "detection_classes": np.float32([[1, 2]]),
        }


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "load_model", _Model)


def _detect(output: pathlib.Path, *arguments: str) -> int:
    return cli.main(["detect", "--model=model", f"--output_dir={output}", *arguments])


def test_a_clip_gets_an_annotated_clip_and_a_line_for_each_frame(tmp_path, capsys):
    clip, output = tmp_path / "clip.MP4", tmp_path / "out"
    _write_clip(clip)
    assert _detect(output, str(clip), "--classes=circle") == 0
    printed = capsys.readouterr().out
    assert f"{clip}: 5 frames, " in printed and " frames/s -> " in printed
    names = {path.name for path in output.iterdir()}
    assert names == {"clip_detections.mp4", "clip_detections.jsonl"}
    text = (output / "clip_detections.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["frame"] for line in lines] == [0, 1, 2, 3, 4]
    times = [line["seconds"] for line in lines]
    assert times == pytest.approx([0, 0.1, 0.4, 0.9, 1.6])
    assert {(line["height"], line["width"]) for line in lines} == {SIZE}
    assert {each["name"] for line in lines for each in line["detections"]} == {"circle"}
    import av

    with av.open(str(output / "clip_detections.mp4")) as written:
        frames = list(written.decode(video=0))
    assert [frame.time for frame in frames] == pytest.approx(times)
    pixels = frames[4].to_ndarray(format="rgb24")
    assert pixels.shape == (48, 64, 3), "H.264 has even sizes"
    assert np.ptp(pixels) > 100, "boxes are drawn"


def test_a_clip_that_cannot_be_read_costs_a_line(tmp_path, capsys):
    pytest.importorskip("av")
    _write_clip(tmp_path / "b.mp4")
    (tmp_path / "a.mp4").write_bytes((tmp_path / "b.mp4").read_bytes()[:300])
    (tmp_path / "c.mp4").write_bytes(b"")
    clips = [str(tmp_path / f"{name}.mp4") for name in "abc"]
    assert _detect(tmp_path / "out", *clips) == 1
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 2
    for clip in (clips[0], clips[2]):
        assert f"{clip} cannot be read as a video: " in output.err
    assert f"{clips[1]}: 5 frames" in output.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"b_detections.mp4", "b_detections.jsonl"}


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    clip = tmp_path / "clip.mp4"
    clip.touch()
    assert _detect(tmp_path / "out", str(clip)) == 1
    error = capsys.readouterr().err
    assert "videos need the package av" in error and "'estimator-det[video]'" in error
    assert not (tmp_path / "out").exists()
    assert _detect(tmp_path / "out", str(tmp_path / "none.mp4")) == 1
