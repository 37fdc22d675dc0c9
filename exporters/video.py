"""Runs a detector on a video; writes an annotated clip and a JSON line for each frame.

PyAV (extra `video`) reads and writes clips; it is imported only here, when a video is read.
"""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any, NamedTuple

import numpy as np

from estimator_det import files
from estimator_det.errors import RunError
from estimator_det.files import atomic
from exporters.detect_files import Filter, json_entries, json_line
from exporters.detector import Detector

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


def detect_video(detector: Detector, path: str, output_dir: str, passes: Filter) -> VideoResult:
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
            atomic.replaced(clip) as new_clip,
            atomic.replaced(lines_file) as new_lines,
            av.open(path) as source,
        ):
            count = _annotate(detector, source, new_clip, new_lines, passes)
    except av.FFmpegError as error:
        raise OSError(f"{path} cannot be read as a video: {error.strerror}") from error
    return VideoResult(clip, lines_file, count, time.perf_counter() - started)


def _annotate(detector: Detector, source: Any, clip: str, lines_file: str, passes: Filter) -> int:
    """Writes the annotated frames of an open video, and their lines; returns their number."""
    import av

    if not source.streams.video:
        raise OSError(f"{source.name} has no video stream")
    video = source.streams.video[0]
    video.thread_type = "AUTO"  # decodes on all cores
    count, stream = 0, None
    with (
        av.open(clip, "w", format="mp4") as target,
        open(lines_file, "w", encoding="utf-8") as lines,
    ):
        for frame in source.decode(video):
            # Rotated as the display matrix of the frame states.
            pixels = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            pixels = np.ascontiguousarray(pixels)
            # One frame at a time: memory does not depend on the length of the clip.
            detections = passes.apply(detector.detect_batch(pixels[np.newaxis])[0])
            # H.264 has half as many rows and columns of colors, so that their numbers are even.
            height, width = (size // 2 * 2 for size in pixels.shape[:2])
            drawing = np.ascontiguousarray(detections.draw(pixels)[:height, :width])
            if stream is None:
                stream = _add_stream(target, video, height, width)
            annotated = av.VideoFrame.from_ndarray(drawing, format="rgb24")
            annotated.pts, annotated.time_base = frame.pts, frame.time_base
            target.mux(stream.encode(annotated))
            line = {
                "file": source.name,
                "frame": count,
                "seconds": None if frame.time is None else round(float(frame.time), 6),
                "height": pixels.shape[0],
                "width": pixels.shape[1],
                "detections": json_entries(detections),
            }
            lines.write(json_line(line))
            count += 1
        if stream is None:
            raise OSError(f"{source.name}: the video has no frame")
        target.mux(stream.encode())  # frames that the encoder still holds
    return count


def _add_stream(target: Any, video: Any, height: int, width: int) -> Any:
    """A stream of a clip, of the size of the first frame, with the rate and times of the video."""
    # Streams of some webcams have no rate: 25 frames per second, as in European television.
    stream = target.add_stream(_CODEC, rate=video.average_rate or 25)
    stream.height, stream.width = height, width
    stream.pix_fmt = "yuv420p"
    stream.codec_context.time_base = video.time_base
    return stream


def check_installed() -> None:
    """Refuses videos if PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise RunError(
            "videos need the package av, which is not installed; run pip install "
            "'estimator-det[video]'"
        )
