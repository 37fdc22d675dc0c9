"""The second pass over a data set: one shard of every split from one file of descriptions.

A process, or an element of a Beam pipeline, calls `convert_shard` alone. A shard whose result is on
disk is not converted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.files import atomic
from inputs.checks.statistics import ImageRow, Tally, columns_of, count_columns, count_faults
from inputs.conversion.examples import NO_NOTES, convert_image
from inputs.conversion.index import read_entries
from inputs.conversion.objects import RecordOptions
from inputs.conversion.splits import Split, split_of
from inputs.datasets import writer
from inputs.datasets.source import SourceFault

ENTRIES, FAULTS, RESULT = "entries", "faults", "result"  # files of a shard in the work folder


@dataclass(frozen=True)
class ConversionJob:
    """Settings that all shards of a conversion share."""

    output_dir: str
    work_dir: str  # in output_dir, for unfinished files; deleted at the end
    splits: Tuple[Split, ...]
    num_shards: int
    example: RecordOptions
    key: str  # differs if any option of records does

    def file(self, name: str, shard: int) -> str:
        """Path of a temporary file: ENTRIES, FAULTS or RESULT."""
        return os.path.join(self.work_dir, f"{name}-{shard:05d}.json")

    def record_files(self, split: str, shard: int) -> Tuple[str, str]:
        """Path of a shard while it is written, and at the end."""
        name = writer.shard_paths(f"{split}.record", self.num_shards)[shard]
        return os.path.join(self.work_dir, name), os.path.join(self.output_dir, name)


class ShardResult(NamedTuple):
    """Result of a finished shard."""

    key: str  # digest of the job and the descriptions
    sizes: Dict[str, int]  # split -> bytes of its file
    tally: Tally


def convert_shard(job: ConversionJob, shard: int) -> ShardResult:
    """Writes a shard of every split to the folder of temporary files, unless it is there."""
    earlier = read_result(job, shard)
    if earlier is not None:
        return earlier
    paths = {split.name: job.record_files(split.name, shard)[0] for split in job.splits}
    rows: Dict[str, List[ImageRow]] = {name: [] for name in paths}
    notes = dict(NO_NOTES)
    faults: List[SourceFault] = []
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(tf.io.TFRecordWriter(path)) for name, path in paths.items()
        }
        for split, image in read_entries(job.file(ENTRIES, shard)):
            converted = convert_image(image, job.example)
            faults += converted.faults
            for serialized, row in converted.records:
                split = split or split_of(converted.sha256, job.splits)
                writers[split].write(serialized)
                rows[split].append(row)
            notes = {name: count + converted.notes[name] for name, count in notes.items()}
    result = ShardResult(
        _key(job, shard),
        {name: os.path.getsize(path) for name, path in paths.items()},
        {
            "splits": {name: count_columns(columns_of(rows[name])) for name in paths},
            "faults": count_faults(faults),
            **notes,
        },
    )
    lines = (json.dumps(fault._asdict()) + "\n" for fault in faults)
    atomic.write(job.file(FAULTS, shard), "".join(lines))
    atomic.write(job.file(RESULT, shard), json.dumps(result._asdict()))
    return result


def read_result(job: ConversionJob, shard: int) -> Optional[ShardResult]:
    """The result of an earlier run, if it is of the same job and its files are whole."""
    try:
        with open(job.file(RESULT, shard), encoding="utf-8") as file:
            result = ShardResult(**json.load(file))
    # TypeError: another release wrote it.
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    if result.key != _key(job, shard):
        return None
    for name, size in result.sizes.items():
        path, _ = job.record_files(name, shard)
        if not os.path.exists(path) or os.path.getsize(path) != size:
            return None
    return result


def _key(job: ConversionJob, shard: int) -> str:
    digest = hashlib.sha256(job.key.encode())
    with open(job.file(ENTRIES, shard), "rb") as file:
        digest.update(file.read())
    return digest.hexdigest()
