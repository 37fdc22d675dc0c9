"""Checks of the first records before training: class names, masks, and room for a cache.

Decoding drops boxes of unknown names, since this allows training on some classes of a data set.
With a wrong label map it would drop all boxes. A box without a mask gets an empty one; without any
mask, a model would learn that all are empty.
"""

from __future__ import annotations

import collections
import itertools
import logging
from typing import Counter, Iterator, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config.printing import quoted
from estimator_det.config.text import ConfigError, nearest
from estimator_det.files.image_header import claimed_size
from estimator_det.files.text import shortened
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2
from inputs.decoding.example import MASKS, OBJECT, PARSE_ERRORS, SIDES
from inputs.decoding.images import KEPT_SCALE
from inputs.label_map import LabelMap, read_label_map
from inputs.machine import available_memory
from inputs.records.stream import find_files, input_patterns
from inputs.records.tfrecord import Damage, read_records

NUM_RECORDS = 32  # some megabytes at most; enough to meet the common classes
NUM_SHOWN = 5
NUM_CHANNELS = 3
CACHE_SHARE = 0.5  # share of the memory that the cache may fill

_LOG = logging.getLogger(__name__)


def check_class_names(
    reader: input_reader_pb2.InputReader,
    paths: Optional[Sequence[str]] = None,
    label_map: Optional[LabelMap] = None,
) -> None:
    """Looks up the class names of the first records of the first of `paths`, or of the reader.

    Names that the label map lacks are logged as a warning, with their number of boxes. Sequence
    records, readers without a label map and records without names are not checked.
    """
    if not reader.label_map_path or reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE:
        return
    label_map = label_map or read_label_map(reader.label_map_path)
    path = (paths or find_files(input_patterns(reader)[0]))[0]
    names: Counter[str] = collections.Counter()
    for example in first_examples(path):
        texts = example.features.feature[OBJECT + "class/text"].bytes_list.value
        names.update(text.decode("utf-8", "replace") for text in texts)
    unknown = collections.Counter({n: k for n, k in names.items() if n not in label_map.ids})
    if not unknown:
        return
    shown = ", ".join(f"{quoted(name)} ({count})" for name, count in unknown.most_common(NUM_SHOWN))
    finding = (
        f"of {sum(names.values())} boxes in the first records of {path}, {sum(unknown.values())} "
        f"have class names that label map {label_map.path} lacks: {shown}"
    )
    if len(unknown) == len(names):
        hint = nearest(unknown.most_common(1)[0][0], list(label_map.ids))
        known = list(map(shortened, list(label_map.ids)[:NUM_SHOWN]))
        raise ConfigError(
            None,
            f"{finding}{hint}. The map's first names are {known}. Without a common name all boxes "
            "are dropped",
            "Correct label_map_path, or the names in the map or in the records",
        )
    _LOG.warning("%s. These boxes are dropped.", finding)


def check_masks(path: str) -> None:
    """Refuses a file of Examples whose first records have boxes and no mask."""
    num_boxes = 0
    for example in first_examples(path):
        features = example.features.feature
        if MASKS in features and features[MASKS].WhichOneof("kind"):
            return
        num_boxes += len(features[SIDES[0]].float_list.value)
    if num_boxes:
        raise ConfigError(
            None,
            f"{path}: none of the {num_boxes} boxes in its first records has a mask in "
            f"{MASKS!r}, and the model learns masks",
            "Write the masks into the records, or use a model without masks (faster_rcnn with "
            "number_of_stages: 2)",
        )


def check_cache(path: str, num_bytes: int, resizer: Resizer, is_reduced: bool) -> None:
    """Refuses a cache of the decoded images of files of `num_bytes` that does not fit into memory.

    The first records of the file `path` count as typical; `is_reduced` is the reader's `fast_jpeg`.
    """
    record_bytes = decoded_bytes = 0
    for example in first_examples(path):
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
        raise ConfigError(
            "train_input_reader.cache",
            f"is MEMORY: the decoded images need about {needed / 1e9:.1f} GB, and half of this "
            f"machine's memory is {room / 1e9:.1f} GB",
            "Leave it out, or set fast_jpeg: true for large photographs",
        )


def first_examples(path: str) -> Iterator[tf.train.Example]:
    """The first records of a file that parse."""
    records = (record for _, record in read_records(path) if not isinstance(record, Damage))
    for record in itertools.islice(records, NUM_RECORDS):
        try:
            yield tf.train.Example.FromString(record)
        except PARSE_ERRORS as error:
            _LOG.debug("%s contains a record that does not parse: %s", path, error)
