"""Converts a data set to sharded record files: two passes, several processes, resumable.

The first pass (`index`) writes a file of descriptions of each shard's images to a temporary folder;
the second pass (`shards`) writes the shards beside them. When all shards are whole, they move to
the output folder, and the temporary folder is deleted. A conversion that was killed repeats the
first pass, and keeps each shard whose descriptions and options have not changed. No byte depends on
the number of processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
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

from estimator_det import files
from estimator_det.console.printing import counted, quoted
from estimator_det.errors import UsageError
from estimator_det.files import ownership
from inputs import machine
from inputs.bad_records.kinds import SOURCE_KINDS
from inputs.checks.statistics import Tally, add_tallies
from inputs.conversion import index, shards
from inputs.conversion.images import HEADER, ImageOptions
from inputs.conversion.objects import RecordOptions
from inputs.conversion.shards import ENTRIES, FAULTS, RESULT, ConversionJob, ShardResult
from inputs.conversion.splits import Split
from inputs.datasets import paths, writer
from inputs.datasets.converters import open_source
from inputs.datasets.source import (
    CLIPPED,
    DROPPED,
    KEPT,
    SKIPPED,
    ConversionError,
    Source,
    SourceOptions,
    fault_unit,
)
from inputs.label_map import read_label_map

WORK_DIR = ".convert"
LABEL_MAP_FILE = "label_map.pbtxt"
FAULTS_FILE = "faults.jsonl"
# In WORK_DIR:
LOCK, SCRATCH = "lock", "scratch"
PUBLISHING = "publishing"  # exists while shards are moved to the output folder
FIRST_FAULTS = "faults-index.jsonl"  # faults of the first pass
IMAGES_PER_SHARD = 1000
MAX_SHARDS = 99_999
# Starting a process takes as long as converting a fifth of this.
BYTES_PER_PROCESS = 300_000_000
_IMAGE_BYTES = 25_000  # an image takes as long as decoding this much, and its own bytes besides
RELEASE = 2  # changes when the same options give other records or counts
STOP, SKIP, KEEP = "stop", "skip", "keep"


@dataclass(frozen=True)
class ConvertOptions:
    """Source, target and options of a conversion."""

    format: str  # a name in `converters.CONVERTERS`
    source: SourceOptions
    output_dir: str
    splits: Tuple[Split, ...] = (Split("train"),)
    # Shards of each split; None: one for each IMAGES_PER_SHARD images.
    num_shards: Optional[int] = None
    label_map: str = ""  # an existing file, which is copied; "" makes one
    image: ImageOptions = field(default_factory=ImageOptions)
    masks: bool = False
    clip_boxes: bool = False
    on_error: str = STOP  # or SKIP: the image or box
    duplicates: str = KEEP  # copies within a split: KEEP, SKIP or STOP
    tiles: Optional[int] = None  # side of the tiles into which images are cut
    overwrite: bool = False  # replaces the shards of an earlier conversion

    def __post_init__(self) -> None:
        if self.num_shards is not None and not 1 <= self.num_shards <= MAX_SHARDS:
            raise UsageError(f"num_shards is {self.num_shards}; allowed: 1 to {MAX_SHARDS:,}")
        if self.tiles and (self.masks or self.image.verify == HEADER):
            flag = "--masks" if self.masks else "--verify header"
            raise UsageError(f"--tiles cuts boxes, and images that it decodes; remove {flag}")
        if not self.output_dir:
            raise UsageError("output_dir is empty; name a folder")
        if files.is_remote(self.output_dir):
            raise UsageError(
                f"output_dir is {self.output_dir}: conversion writes to local folders; copy the "
                "record files afterwards"
            )


class Conversion(NamedTuple):
    """The result of a conversion."""

    patterns: Dict[str, str]  # split -> pattern of its record files
    label_map: str  # path
    names: Dict[int, str]  # class id -> name
    tally: Tally  # faults of all shards, and of the first pass
    num_unlisted: int  # images that no list of a split names
    num_resumed: int  # shards of an earlier run
    seconds: float


# Runs `convert_shard` for all shards of a job; a result for each in their order.
Runner = Callable[[ConversionJob], Iterator[ShardResult]]
# (title, number of images or None) -> a function that gets the number done since its last call.
Advance = Callable[[str, Optional[int]], Callable[[int], Any]]


def convert(
    options: ConvertOptions,
    *,
    jobs: int = 1,
    run: Optional[Runner] = None,
    progress: Advance = lambda title, total: lambda images: None,
) -> Conversion:
    """Converts a data set; `run` runs the shards, by default in `jobs` processes."""
    started = time.monotonic()
    work_dir = os.path.join(options.output_dir, WORK_DIR)
    folder = paths.real_folder(options.source.images, "--images")
    if options.label_map and not files.is_remote(options.label_map):
        paths.require_file(options.label_map, "--label_map")
    with files.removed_if_empty(options.output_dir), _working(work_dir):
        _check_free(options, work_dir)
        scratch = os.path.join(work_dir, SCRATCH)
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch)
        source = open_source(
            options.format, replace(options.source, scratch=scratch), masks=options.masks
        )
        image_index = index.build(
            source, folder, scratch, options.splits,
            duplicates=options.duplicates, faults_file=os.path.join(work_dir, FIRST_FAULTS),
            advance=progress("reading annotations", source.total),
        )  # fmt: skip
        has_classes = options.label_map or image_index.names or source.names
        if not image_index.num_images or not has_classes:  # the second pass has nothing to do
            _check_faults(options, work_dir, add_tallies([image_index.faults, image_index.dropped]))
            raise _nothing_left(options, image_index)
        if options.tiles and source.keypoints:
            raise UsageError("--tiles cuts boxes, and the source has keypoints; remove --tiles")
        label_map, names, ids = _classes(options, source, image_index)
        count = options.num_shards or -(-image_index.num_images // IMAGES_PER_SHARD)
        keypoints = _keypoint_names(options, source)
        job = _make_job(options, work_dir, folder, ids, count, keypoints)
        index.write_entries(image_index, [job.file(ENTRIES, shard) for shard in range(count)])
        shutil.rmtree(scratch)
        resumed = sum(shards.read_result(job, shard) is not None for shard in range(count))
        # Tiles are counted as they are written, and nothing says before how many they are.
        advance = progress("converting", None if options.tiles else image_index.num_images)
        if run is None:
            run = functools.partial(_run, jobs=min(jobs, _most_processes(image_index)))
        tallies: List[Tally] = [{"faults": image_index.faults}]
        for result in run(job):
            tallies.append(result.tally)
            advance(sum(split["images"] for split in result.tally["splits"].values()))
        totals = add_tallies(tallies)
        _check_faults(options, work_dir, totals["faults"], totals["splits"])
        _publish(options, job, source, names, label_map)
    ending = f".record-?????-of-{count:05d}"
    return Conversion(
        {s.name: os.path.join(options.output_dir, s.name + ending) for s in options.splits},
        label_map, names, totals, image_index.num_unlisted, resumed, time.monotonic() - started,
    )  # fmt: skip


def _most_processes(image_index: index.Index) -> int:
    """The number of processes, each with enough work that its start matters little."""
    work = image_index.num_bytes + image_index.num_images * _IMAGE_BYTES
    return max(work // BYTES_PER_PROCESS, 1)


def _run(job: ConversionJob, jobs: int) -> Iterator[ShardResult]:
    """Converts all shards in this process, or in several on this machine."""
    numbers = range(job.num_shards)
    if jobs <= 1 or len(numbers) == 1:
        return (shards.convert_shard(job, shard) for shard in numbers)
    return machine.run_in_processes(
        shards.convert_shard, job, numbers, jobs=jobs, task_name="shard {}".format
    )


@contextlib.contextmanager
def _working(work_dir: str) -> Iterator[None]:
    """Context with the folder of temporary files, which is removed on failure if it has no shard.

    No other process can use the folder meanwhile.
    """
    os.makedirs(work_dir, exist_ok=True)
    with open(os.path.join(work_dir, LOCK), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConversionError(
                f"another process converts into {os.path.dirname(work_dir)}: wait until it ends, "
                "or name another --output_dir"
            ) from None
        try:
            yield
        except Exception:
            if not glob.glob(os.path.join(glob.escape(work_dir), f"{RESULT}-*")):
                shutil.rmtree(work_dir, ignore_errors=True)
            raise


def _record_files(options: ConvertOptions) -> List[str]:
    """Names of the splits' record files in the output folder, of any number of shards."""
    names = "|".join(re.escape(split.name) for split in options.splits)
    pattern = re.compile(rf"(?:{names})\.record-\d{{5}}-of-\d{{5}}")
    return sorted(filter(pattern.fullmatch, os.listdir(options.output_dir)))


def _check_free(options: ConvertOptions, work_dir: str) -> None:
    """Refuses to replace records, and takes back what a killed conversion had published."""
    records = _record_files(options)
    marker = os.path.join(work_dir, PUBLISHING)
    if os.path.exists(marker):
        for name in records:
            os.replace(os.path.join(options.output_dir, name), os.path.join(work_dir, name))
        os.remove(marker)
    elif records and not _is_own(options.output_dir):
        raise FileExistsError(
            f"{options.output_dir} contains {records[0]}, which convert did not write: name "
            "another --output_dir or --split"
        )
    elif records and not options.overwrite:
        others = f" and {counted(len(records) - 1, 'more file')}" if len(records) > 1 else ""
        raise FileExistsError(
            f"{options.output_dir} contains {records[0]}{others} of the same splits: name another "
            "--output_dir or --split, or add --overwrite"
        )


def _is_own(output_dir: str) -> bool:
    """True if a conversion wrote the folder's contents; older releases left a report, no marker."""
    names = (ownership.marker("convert"), "convert_report.json")
    return any(os.path.exists(os.path.join(output_dir, name)) for name in names)


def _check_faults(
    options: ConvertOptions, work_dir: str, faults: Tally, splits: Optional[Tally] = None
) -> None:
    """If faults stop the conversion, removes all files and raises an error that lists the faults.

    Args:
        splits: Counts of what is converted; None if the source has no image or no class.
    """
    rows: Dict[str, Any] = {}
    lost = {SKIPPED: 0, DROPPED: 0}
    for key, row in faults.items():
        kind, action = key.split()
        is_copy = kind == "duplicate_image" and options.duplicates == SKIP
        if action not in (KEPT, CLIPPED) and not is_copy:
            rows[key] = row
            lost[action] += row["count"]
    if options.on_error == SKIP or not rows:
        return
    shutil.rmtree(work_dir)
    total = sum(row["count"] for row in rows.values())
    order = list(SOURCE_KINDS)
    lines = [f"{counted(total, 'fault')} of the source; nothing is written"]
    for key, row in sorted(rows.items(), key=lambda item: order.index(item[0].split()[0])):
        many = counted(row["count"], fault_unit(*key.split()))
        first = ", the first" if row["count"] > 1 else ""
        lines.append(f"  {many}{first}: {row['examples'][0]}")
    if splits is None:
        lines.append("Or add --on_error skip, which skips such images and drops such boxes")
    else:
        images, boxes = (
            sum(split[unit] for split in splits.values()) + lost[action]
            for unit, action in (("images", SKIPPED), ("boxes", DROPPED))
        )
        lines.append(
            f"Or add --on_error skip, which skips {lost[SKIPPED]:,} of "
            f"{counted(images, 'image')} and drops {lost[DROPPED]:,} of "
            f"{counted(boxes, 'box', 'boxes')}"
        )
    raise ConversionError("\n".join(lines))


def _nothing_left(options: ConvertOptions, image_index: index.Index) -> Exception:
    """The error of a source without any image, or without any object with a class."""
    faults = image_index.dropped if image_index.num_images else image_index.faults
    examples = [text for row in faults.values() for text in row["examples"]]
    reason = f". The first fault: {examples[0]}" if examples else ""
    if not image_index.num_images:
        place = options.source.annotations or options.source.images
        remedy = reason or ": correct --annotations, --images or --from"
        return UsageError(f"{place} gives no image of the format {options.format}{remedy}")
    if reason:
        return ConversionError(f"no object is left{reason}")
    return UsageError("the source has no object with a class; name the classes by --label_map")


def _classes(
    options: ConvertOptions, source: Source, image_index: index.Index
) -> Tuple[str, Dict[int, str], Dict[str, int]]:
    """Path of the label map, id -> name, and name -> id of all names that it knows.

    A new label map has the ids of the source; without ids, the sorted names count from 1.
    """
    if options.label_map:
        existing = read_label_map(options.label_map)
        names = image_index.names or set((source.names or {}).values())
        if names and not names & set(existing.ids):
            raise UsageError(
                f"label map {options.label_map} has none of the classes of the source: "
                f"{sorted(names)[:5]}; its own are {sorted(existing.ids)[:5]}"
            )
        return options.label_map, existing.names, existing.ids
    path = os.path.join(options.output_dir, LABEL_MAP_FILE)
    names_by_id = source.names or dict(enumerate(sorted(image_index.names), start=1))
    least = min(names_by_id)
    if least < 1:
        raise UsageError(
            f"the class {quoted(names_by_id[least])} has id {least}, and ids of a label map start "
            "at 1: write a file labels.pbtxt with a line for each class, such as "
            f"item {{ id: 1 name: {quoted(names_by_id[least])} }}, and add --label_map labels.pbtxt"
        )
    if os.path.exists(path):
        earlier = read_label_map(path)
        is_replaced = options.overwrite and _is_own(options.output_dir)
        if earlier.names != names_by_id and not is_replaced:
            raise UsageError(
                f"{path} has other classes than the source: add --label_map {path} to use it, or "
                "name another --output_dir"
            )
    ids = {name: number for number, name in names_by_id.items()}
    if len(ids) < len(names_by_id):
        twice = sorted(n for n in ids if list(names_by_id.values()).count(n) > 1)
        raise UsageError(f"two classes of the source have the same name: {twice[:5]}")
    return path, names_by_id, ids


def _keypoint_names(options: ConvertOptions, source: Source) -> Dict[str, Sequence[str]]:
    """Class name -> names of its keypoints, by the source, or else by `options.label_map`."""
    names: Dict[str, Sequence[str]] = {}
    if options.label_map:
        label_map = read_label_map(options.label_map)
        for name, class_id in label_map.ids.items():
            labels = {at: label for label, at in label_map.keypoints.get(class_id, {}).items()}
            names[name] = [labels.get(at, "") for at in range(max(labels, default=-1) + 1)]
    return {**names, **source.keypoints}


def _make_job(
    options: ConvertOptions,
    work_dir: str,
    folder: str,
    ids: Dict[str, int],
    count: int,
    keypoints: Mapping[str, Sequence[str]],
) -> ConversionJob:
    mask_images = options.source.mask_images and os.path.realpath(options.source.mask_images)
    example = RecordOptions(
        folder,
        ids,
        options.image,
        options.masks,
        mask_images,
        options.clip_boxes,
        dict(keypoints),
        options.tiles,
    )
    shares = [(split.name, split.share) for split in options.splits]
    relevant = [RELEASE, asdict(example), shares, count]
    key = hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()
    return ConversionJob(options.output_dir, work_dir, options.splits, count, example, key)


def _publish(
    options: ConvertOptions,
    job: ConversionJob,
    source: Source,
    names: Dict[int, str],
    label_map: str,
) -> None:
    """Gives all files their names, and deletes the temporary ones."""
    is_own = _is_own(options.output_dir)
    ownership.mark(options.output_dir, "convert")
    for name in _record_files(options):  # --overwrite is set
        os.remove(os.path.join(options.output_dir, name))
    marker = os.path.join(job.work_dir, PUBLISHING)
    files.write_text(marker, "")
    for split, shard in itertools.product(options.splits, range(job.num_shards)):
        os.replace(*job.record_files(split.name, shard))
    # A label map of the same classes by another program may have more fields.
    path = os.path.join(options.output_dir, LABEL_MAP_FILE)
    is_replaced = is_own and (options.overwrite or not options.label_map)
    if is_replaced or not os.path.exists(path):
        if options.label_map:
            files.write_text(path, files.read_text(label_map))
        else:
            points = {number: source.keypoints.get(name, ()) for number, name in names.items()}
            writer.write_label_map(names, path, points)
    for split in options.splits if source.dataset is not None else ():
        path = os.path.join(options.output_dir, f"{split.name}.dataset.json")
        files.write_text(path, json.dumps(source.dataset))
    parts = [os.path.join(job.work_dir, FIRST_FAULTS)]
    parts += [job.file(FAULTS, shard) for shard in range(job.num_shards)]
    with open(os.path.join(options.output_dir, FAULTS_FILE), "wb") as target:
        for part in parts:
            with open(part, "rb") as lines:
                shutil.copyfileobj(lines, target)
    os.remove(marker)  # From now on the records are finished, even if the next line is cut short.
    shutil.rmtree(job.work_dir)
