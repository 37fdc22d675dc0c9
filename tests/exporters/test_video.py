"""Videos, with and without PyAV."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import types
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.files import ownership
from estimator_det.programs import cli
from exporters import Detector, formats, video
from exporters.detect_files import Filter
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
    assert names == {"clip_detections.mp4", "clip_detections.jsonl", ownership.marker("detect")}
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


class _Frame:
    """A frame as PyAV gives it, stored a quarter turn away from its display."""

    def __init__(self, pixels: np.ndarray, pts: Any = None) -> None:
        self.pixels, self.rotation, self.pts, self.time_base = pixels, 90, pts, None
        self.time = None if pts is None else pts / 10

    def to_ndarray(self, format: str) -> np.ndarray:  # the name of PyAV
        return self.pixels

    @staticmethod
    def from_ndarray(pixels: np.ndarray, format: str) -> _Frame:
        return _Frame(pixels)


def test_frames_are_rotated_drawn_and_timed(tmp_path, monkeypatch):
    """Without PyAV, of which only the functions that `video` calls are there."""
    written: List[Any] = []
    stream = types.SimpleNamespace(
        codec_context=types.SimpleNamespace(), encode=lambda *frames: written.extend(frames) or []
    )
    target = types.SimpleNamespace(add_stream=lambda codec, rate: stream, mux=lambda packets: None)
    av = types.ModuleType("av")
    av.open = lambda *_, **__: contextlib.nullcontext(target)
    av.VideoFrame = _Frame
    monkeypatch.setitem(sys.modules, "av", av)
    pixels = np.zeros([*SIZE, 3], np.uint8)
    pixels[0] = 200  # the first row as stored is the first column as displayed
    source = types.SimpleNamespace(
        name="clip.mp4",
        streams=types.SimpleNamespace(
            video=[types.SimpleNamespace(average_rate=None, time_base="base")]
        ),
        decode=lambda video: [_Frame(pixels, 0), _Frame(pixels, 7)],
    )
    lines_file = tmp_path / "lines.jsonl"
    detector = Detector(_Model("model"))
    count = video._annotate(detector, source, "clip", str(lines_file), Filter(0.85))
    lines = [json.loads(line) for line in lines_file.read_text().splitlines()]
    assert count == 2 and [line["seconds"] for line in lines] == [0.0, 0.7]
    assert [line["frame"] for line in lines] == [0, 1]
    assert {(line["height"], line["width"]) for line in lines} == {SIZE[::-1]}
    assert [each["name"] for each in lines[1]["detections"]] == ["circle"]
    assert (stream.height, stream.width) == (64, 48) and stream.codec_context.time_base == "base"
    assert [frame.pts for frame in written] == [0, 7]
    assert written[1].pixels.shape == (64, 48, 3) and written[1].pixels[5, 0].min() == 200
    assert np.ptp(written[1].pixels[20:]) >= 100, "boxes are drawn"


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
    assert names == {"b_detections.mp4", "b_detections.jsonl", ownership.marker("detect")}


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    clip = tmp_path / "clip.mp4"
    clip.touch()
    assert _detect(tmp_path / "out", str(clip)) == 1
    error = capsys.readouterr().err
    assert "videos need the package av" in error and "'estimator-det[video]'" in error
    assert not (tmp_path / "out").exists()
    assert _detect(tmp_path / "out", str(tmp_path / "none.mp4")) == 1
