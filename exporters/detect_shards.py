"""Runs a detector on many images shard by shard, on this machine or on a cluster.

A shard is a part of the image files, or of the record files. It writes its JSON lines, its records
if they are wanted, and last its result: a shard with a result is not run again. All paths may be
remote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import uuid
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from google.protobuf.message import DecodeError

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import UsageError
from estimator_det.files import atomic, bracket_hint, matching, ownership
from exporters import label_drafts
from exporters.detect_files import DETECTIONS_FILE, Filter, detect_image, json_line
from exporters.detector import Detector
from exporters.image_files import ImageFile, decode_image, is_image
from inputs.datasets import writer
from inputs.records import stream, tfrecord

IMAGES_PER_SHARD = 1000
BAD_IMAGES_FILE = "bad_images.jsonl"
RESULT_FILE = os.path.join(".detect", "result.json")
RECORDS_FILE = os.path.join(label_drafts.FOLDER, "detections.record")


class Shard(NamedTuple):
    """A part of the input files."""

    number: int
    paths: Tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DetectionJob:
    """Settings that all shards share."""

    model: str
    output_dir: str
    num_shards: int
    passes: Filter
    has_records: bool = False  # the input files are records
    saves_records: bool = False  # drafts of labels are written
    version: str = ""  # differs if the model does: see `version_of`

    def file(self, name: str, shard: int) -> str:
        """Path of a shard of an output file."""
        return writer.shard_paths(os.path.join(self.output_dir, name), self.num_shards)[shard]

    def key(self, shard: Shard) -> str:
        """Digest of all that a result depends on, except the contents of the input files."""
        facts = (dataclasses.replace(self, output_dir=""), shard)
        return hashlib.sha256(repr(facts).encode()).hexdigest()


class ShardResult(NamedTuple):
    """The result of a finished shard."""

    key: str
    num_images: int
    num_detections: int
    failed: List[Dict[str, Any]]  # JSON lines of images that cannot be used


class _Picture(NamedTuple):
    name: str
    encoded: bytes
    fault: str = ""  # why there are no bytes
    place: Mapping[str, Any] = {}  # further entries of the JSON line

    def read(self) -> ImageFile:
        try:
            if self.fault:
                raise OSError(self.fault)
            return decode_image(self.encoded)
        except OSError as error:
            raise OSError(f"{self.name} cannot be read: {error}") from error


def detect_shard(job: DetectionJob, shard: Shard, detector: Detector) -> ShardResult:
    """Runs the detector on the images of a shard, unless it is complete already."""
    earlier = read_result(job, shard)
    if earlier is not None:
        return earlier
    lines: List[str] = []
    failed: List[Dict[str, Any]] = []
    num_detections = 0
    with _records(job, shard.number) as write:
        for picture in _pictures(job, shard):
            outcome = detect_image(detector, picture.name, picture.read, job.passes)
            line, image, detections = outcome.line, outcome.image, outcome.detections
            line.update(picture.place)
            lines.append(json_line(line))
            if image is None or detections is None:
                failed.append(line)
                continue
            num_detections += len(detections)
            if job.saves_records:
                write(label_drafts.make_record(picture.name, picture.encoded, image, detections))
    result = ShardResult(job.key(shard), len(lines), num_detections, failed)
    atomic.write(job.file(DETECTIONS_FILE, shard.number), "".join(lines))
    atomic.write(job.file(RESULT_FILE, shard.number), json.dumps(result._asdict()))
    return result


def read_result(job: DetectionJob, shard: Shard) -> Optional[ShardResult]:
    """The result of a shard that an earlier run of the same job has completed."""
    path = job.file(RESULT_FILE, shard.number)
    names = [DETECTIONS_FILE, *([RECORDS_FILE] if job.saves_records else [])]
    if not all(map(files.exists, [path, *(job.file(name, shard.number) for name in names)])):
        return None
    try:
        result = ShardResult(**json.loads(files.read_text(path)))
    except (ValueError, TypeError):  # another release wrote it
        return None
    return result if result.key == job.key(shard) else None


def _pictures(job: DetectionJob, shard: Shard) -> Iterator[_Picture]:
    for path in shard.paths:
        if not job.has_records:
            yield _read_file(path)
            continue
        for number, record in enumerate(tfrecord.read_records(path)):
            yield _of_record(path, number, record)


def _read_file(path: str) -> _Picture:
    """An image file. Storage that is away for a while fails the shard, which Beam repeats."""
    try:
        if not files.is_remote(path):
            return _Picture(path, files.read_bytes(path))
        with tf.io.gfile.GFile(path, "rb") as file:
            return _Picture(path, file.read())
    except (OSError, UsageError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
        return _Picture(path, b"", getattr(error, "message", str(error)))


def _of_record(path: str, number: int, record: tfrecord.BytesOrDamage) -> _Picture:
    name, place = f"{path}, record {number}", {"record_file": path, "record": number}
    if isinstance(record, tfrecord.Damage):
        return _Picture(name, b"", record.message, place)
    try:
        feature = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return _Picture(name, b"", "it is not a tf.train.Example", place)
    texts = {
        key: b"".join(feature[f"image/{key}"].bytes_list.value[:1])
        for key in ("filename", "source_id", "encoded")
    }
    own_name = (texts["filename"] or texts["source_id"]).decode("utf-8", "replace")
    fault = "" if texts["encoded"] else "image/encoded is missing or empty"
    return _Picture(own_name or name, texts["encoded"], fault, place)


@contextlib.contextmanager
def _records(job: DetectionJob, shard: int) -> Iterator[Callable[[tf.train.Example], None]]:
    """Context manager: writes records to the shard's file, which appears if there is no error."""
    if not job.saves_records:
        yield lambda example: None
        return
    path = job.file(RECORDS_FILE, shard)
    unfinished = f"{path}.{uuid.uuid4().hex}"  # Beam may run a shard twice at once
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(unfinished) as file:
        yield lambda example: file.write(example.SerializeToString())
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def list_files(
    patterns: Sequence[str], *, recursive: bool = False, records: Sequence[str] = ()
) -> Tuple[List[str], List[str]]:
    """Image files, or all record files, of patterns and folders; and files that are skipped."""
    if records:
        return sorted({path for each in records for path in stream.find_files(each)}), []
    paths: List[str] = []
    others: List[str] = []
    for pattern in patterns:
        if not tf.io.gfile.isdir(pattern):
            matches = matching(pattern)
        elif recursive:
            walk = tf.io.gfile.walk(pattern)
            matches = [os.path.join(folder, name) for folder, _, names in walk for name in names]
        else:
            names = tf.io.gfile.listdir(pattern)
            matches = [os.path.join(pattern, name) for name in names if not name.endswith("/")]
        images = [path for path in matches if is_image(path) or path == pattern]
        if not images:
            raise FileNotFoundError(f"{pattern} matches no image file{bracket_hint(pattern)}")
        paths += images
        others += sorted(set(matches) - set(images))
    return sorted(set(paths)), others


def divided(paths: Sequence[str], num_shards: int) -> List[Shard]:
    """Shards of paths that follow one another, as equal as possible; none is empty."""
    ends = [len(paths) * i // num_shards for i in range(num_shards + 1)]
    return [Shard(i, tuple(paths[ends[i] : ends[i + 1]])) for i in range(num_shards)]


def version_of(model: str) -> str:
    """Names, sizes and times of the files of a model, as text."""
    is_folder = tf.io.gfile.isdir(model)
    walk = tf.io.gfile.walk(model) if is_folder else [("", [], [model])]
    paths = sorted(os.path.join(folder, name) for folder, _, names in walk for name in names)
    stats = [(path, tf.io.gfile.stat(path)) for path in paths]
    return repr([(path, each.length, each.mtime_nsec) for path, each in stats])


def check_output(job: DetectionJob) -> None:
    """FileExistsError if the output folder has other files of these names, or another division."""
    ownership.check_files(job.output_dir, "detect", [BAD_IMAGES_FILE, label_drafts.FOLDER])
    names = tf.io.gfile.listdir(job.output_dir) if tf.io.gfile.isdir(job.output_dir) else []
    for name in sorted(names):
        if name.startswith(f"{DETECTIONS_FILE}-") and not name.endswith(f"-{job.num_shards:05d}"):
            raise FileExistsError(
                f"{os.path.join(job.output_dir, name)} is of another number of shards than "
                f"{job.num_shards}; give another --output_dir, or the same --num_shards"
            )
