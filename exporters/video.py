"""Runs a detector on a video; writes an annotated clip and a JSON line for each frame.

PyAV (extra `video`) reads and writes clips; it is imported only here, when a video is read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from typing import Any, Iterator, NamedTuple

import numpy as np

from estimator_det.config import files, json_lines
from exporters.detect_files import ALL_GOOD, Filter, json_entries
from exporters.detector import Detector
from model_fn.checkpoints.errors import RunError

VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
_CODEC = "libx264"  # H.264, which browsers play; the wheels of PyAV contain it


class VideoResult(NamedTuple):
    """The files of an annotated video."""

    clip: str
    lines: str
    num_frames: int
    seconds: float  # time for reading, detection, drawing and writing


def is_video(path: str) -> bool:
    """True if a path has the suffix of a video."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def detect_video(
    detector: Detector, path: str, output_dir: str, passes: Filter = ALL_GOOD
) -> VideoResult:
    """Writes `<name>_detections.mp4`, without sound, and `<name>_detections.jsonl`.

    Both appear when they are whole. Frames keep their times, and are rotated as a player shows
    them. A file that is not a video is an OSError.
    """
    check_installed()
    import av

    if kind := files.special_kind(path):
        raise OSError(f"{path} is {kind}, not a video file")
    os.makedirs(output_dir, exist_ok=True)
    stem = os.path.join(output_dir, os.path.splitext(os.path.basename(path))[0] + "_detections")
    clip, lines_file = f"{stem}.mp4", f"{stem}.jsonl"
    started = time.perf_counter()
    try:
        with (
            _complete_file(clip) as new_clip,
            _complete_file(lines_file) as new_lines,
            av.open(path) as source,
        ):
            count = _annotate(detector, source, new_clip, new_lines, passes)
    except av.FFmpegError as error:
        raise OSError(f"{path} cannot be read as a video: {error.strerror}") from error
    return VideoResult(clip, lines_file, count, time.perf_counter() - started)


def _annotate(detector: Detector, source: Any, clip: str, lines_file: str, passes: Filter) -> int:
    """Writes the annotated frames of an open video, and their lines; returns their number."""
    import av

    count = 0
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(av.open(clip, "w", format="mp4"))
        lines = stack.enter_context(open(lines_file, "w", encoding="utf-8"))
        writer = _ClipWriter(target, source)
        for frame in source.decode(writer.source):
            pixels = _upright(frame)
            # One frame at a time: memory does not depend on the length of the clip.
            detections = passes.apply(detector.detect_batch(pixels[np.newaxis])[0])
            writer.write(detections.draw(pixels), frame)
            line = {
                "file": source.name,
                "frame": count,
                "seconds": None if frame.time is None else round(float(frame.time), 6),
                "height": pixels.shape[0],
                "width": pixels.shape[1],
                "detections": json_entries(detections),
            }
            lines.write(json_lines.dumps(line) + "\n")
            count += 1
        writer.finish()
    return count


def check_installed() -> None:
    """Refuses videos if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise RunError(
            "videos need the package av, which is not installed; run pip install "
            "'estimator-det[video]'"
        )


class _ClipWriter:
    """Writes the frames of a clip in the size of the first one, with the times of their source."""

    def __init__(self, target: Any, source: Any) -> None:
        if not source.streams.video:
            raise OSError(f"{source.name} has no video stream")
        self.source = source.streams.video[0]
        self.source.thread_type = "AUTO"  # decodes on all cores
        self._target = target
        self._stream: Any = None

    def write(self, pixels: np.ndarray, frame: Any) -> None:
        """Adds a frame, uint8 [h, w, 3], at the time of the one that it was made of."""
        import av

        # H.264 has half as many rows and columns of colors, so that their numbers must be even.
        pixels = pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2]
        if self._stream is None:
            # A stream without a rate, as of some webcams, is written at that of European
            # television.
            rate = self.source.average_rate or 25
            self._stream = self._target.add_stream(_CODEC, rate=rate)
            self._stream.height, self._stream.width = pixels.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            self._stream.codec_context.time_base = self.source.time_base
        new = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        new.pts, new.time_base = frame.pts, frame.time_base
        self._target.mux(self._stream.encode(new))

    def finish(self) -> None:
        """Writes what the encoder still has."""
        if self._stream is None:
            raise OSError(f"{self._target.name}: the video has no frame")
        self._target.mux(self._stream.encode())


def _upright(frame: Any) -> np.ndarray:
    """The pixels of a frame, uint8 [h, w, 3], rotated as its display matrix states."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))


@contextlib.contextmanager
def _complete_file(path: str) -> Iterator[str]:
    """Context manager: a path beside a file, which takes its place if no error is raised."""
    partial = f"{path}.unfinished"
    try:
        yield partial
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
