"""Checks of a sample of the records before training: class names, masks, and room for a cache.

Decoding drops boxes of unknown names, since this allows training on some classes of a data set.
With a wrong label map it would drop all boxes. A box without a mask gets an empty mask; without any
mask in the records, a model would learn empty ones.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from typing import Counter, Iterator, List, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config.text import nearest
from estimator_det.console.printing import quoted
from estimator_det.errors import ConfigError, UsageError
from estimator_det.files.image_header import claimed_size
from estimator_det.files.text import shortened
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2
from inputs.decoding.example import MASKS, OBJECT, PARSE_ERRORS, SIDES
from inputs.decoding.images import KEPT_SCALE
from inputs.label_map import LabelMap, read_label_map
from inputs.machine import available_memory
from inputs.records.stream import find_files, input_patterns
from inputs.records.tfrecord import Damage, sample_records

NUM_RECORDS = 64  # some megabytes at most; enough to meet the common classes
NUM_PLACES = 16  # places in the files: a file may be sorted by class
NUM_FILES = 64  # most files of a sample, since remote storage takes long to open one
NUM_SHOWN = 5
NUM_CHANNELS = 3
CACHE_SHARE = 0.5  # share of the memory that the cache may fill

_LOG = logging.getLogger(__name__)


def check_class_names(
    reader: input_reader_pb2.InputReader,
    paths: Optional[Sequence[str]] = None,
    label_map: Optional[LabelMap] = None,
) -> None:
    """Logs a warning of the `unknown_class_names` of a reader."""
    if finding := unknown_class_names(reader, paths, label_map):
        _LOG.warning("%s These boxes are dropped.", finding)


def unknown_class_names(
    reader: input_reader_pb2.InputReader,
    paths: Optional[Sequence[str]] = None,
    label_map: Optional[LabelMap] = None,
) -> str:
    """Looks up the class names of a sample from all of `paths`, or from the files of the reader.

    Returns the names that the label map lacks, with their number of boxes, or ""; a sample without
    any known name is refused. Sequence records, readers without a label map and records without
    names are not checked.
    """
    if not reader.label_map_path or reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE:
        return ""
    label_map = label_map or read_label_map(reader.label_map_path)
    paths = paths or files_of(reader)
    names: Counter[str] = collections.Counter()
    for example in sample_examples(paths):
        texts = example.features.feature[OBJECT + "class/text"].bytes_list.value
        names.update(text.decode("utf-8", "replace") for text in texts)
    unknown = collections.Counter({n: k for n, k in names.items() if n not in label_map.ids})
    if not unknown:
        return ""
    hint = nearest(unknown.most_common(1)[0][0].strip(), list(label_map.ids)) or "."
    shown = ", ".join(f"{quoted(name)} ({count})" for name, count in unknown.most_common(NUM_SHOWN))
    finding = (
        f"of {sum(names.values())} boxes in a sample from {_shown(paths)}, "
        f"{sum(unknown.values())} have class names that label map {label_map.path} lacks: {shown}"
    )
    if len(unknown) == len(names):
        known = list(map(shortened, list(label_map.ids)[:NUM_SHOWN]))
        raise UsageError(
            f"{finding}{hint} The map's first names are {known}. Without a common name all boxes "
            "are dropped. Correct label_map_path, or the names in the map or in the records"
        )
    return finding + hint


def check_masks(paths: Sequence[str]) -> None:
    """Refuses files of Examples if a sample has boxes and no mask; warns of boxes without."""
    num_boxes = num_without = 0
    for example in sample_examples(paths):
        features = example.features.feature
        boxes = len(features[SIDES[0]].float_list.value)
        num_boxes += boxes
        if not (MASKS in features and features[MASKS].WhichOneof("kind")):
            num_without += boxes
    if not num_without:
        return
    which = f"of {num_boxes} boxes in a sample from {_shown(paths)}"
    if num_without == num_boxes:
        raise UsageError(
            f"{which}, none has a mask in {MASKS!r}, and the model learns masks. Write the masks "
            "into the records, or use a model without masks (faster_rcnn with number_of_stages: 2)"
        )
    _LOG.warning("%s, %d have no mask: the model learns empty ones", which, num_without)


def check_cache(paths: Sequence[str], num_bytes: int, resizer: Resizer, is_reduced: bool) -> None:
    """Refuses a cache of the decoded images of files of `num_bytes` that does not fit into memory.

    A sample of the files counts as typical; `is_reduced` is the reader's `fast_jpeg`.
    """
    record_bytes = decoded_bytes = 0
    for example in sample_examples(paths):
        record_bytes += example.ByteSize()
        encoded = example.features.feature["image/encoded"].bytes_list.value
        height, width = (encoded and claimed_size(encoded[0])) or (0, 0)
        if is_reduced:
            most = int(2 * KEPT_SCALE)  # A JPEG is decoded smaller only by factors of two.
            resized = resizer.new_size(height, width)
            height, width = (min(side, most * new) for side, new in zip((height, width), resized))
        decoded_bytes += NUM_CHANNELS * height * width
    needed = num_bytes * decoded_bytes / max(record_bytes, 1)
    room = available_memory() * CACHE_SHARE
    if needed > room:
        raise ConfigError.at(
            "train_input_reader.cache",
            f"is MEMORY: the decoded images need about {needed / 1e9:.1f} GB, and half of this "
            f"machine's memory is {room / 1e9:.1f} GB",
            "Leave it out, or set fast_jpeg: true for large photographs",
        )


def files_of(reader: input_reader_pb2.InputReader) -> List[str]:
    """The files of a reader; FileNotFoundError if there are none."""
    patterns = input_patterns(reader)
    paths: List[str] = []
    for pattern in patterns:
        with contextlib.suppress(FileNotFoundError):  # `bad_records` may allow it.
            paths += find_files(pattern)
    return paths or find_files(next(iter(patterns), ""))


def sample_examples(paths: Sequence[str]) -> Iterator[tf.train.Example]:
    """Records of all files, or of some of very many, that parse: from several places of each."""
    step = max(len(paths) / NUM_FILES, 1.0)
    chosen = [paths[int(number * step)] for number in range(min(len(paths), NUM_FILES))]
    num_places = max(NUM_PLACES // len(chosen), 1)
    num_records = max(NUM_RECORDS // (len(chosen) * num_places), 1)
    for path in chosen:
        for record in sample_records(path, num_places, num_records):
            if isinstance(record, Damage):
                continue
            try:
                yield tf.train.Example.FromString(record)
            except PARSE_ERRORS as error:
                _LOG.debug("%s contains a record that does not parse: %s", path, error)


def _shown(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} files, the first {paths[0]}"
