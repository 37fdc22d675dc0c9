"""The position of a training run in its data, so that a resumed run continues with the next record.

The order of records follows from one seed and differs in each epoch. A stream index is the position
of a record in that order: its stream (one for each input_path where `sample_from_datasets_weights`
mixes them, else 0), the epoch, and its number in the epoch. So a run resumes from a few numbers: it
reads the unfinished epoch again, without decoding, up to the next record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import zlib
from typing import Any, Dict, Mapping, NamedTuple, Optional

import numpy as np

from estimator_det.compat import global_seed, tf
from estimator_det.protos import input_reader_pb2

# Fields that the order depends on, in addition to files and seed.
_READER_FIELDS = (
    "shuffle",
    "shuffle_buffer_size",
    "filenames_shuffle_buffer_size",
    "num_readers",
    "read_block_length",
    "sample_from_datasets_weights",
)

# A stream index is one int64 of stream, epoch and number.
_NUMBER_BITS, _EPOCH_BITS = 32, 24
LAST_NUMBER = 2**_NUMBER_BITS - 1
LAST_EPOCH = 2**_EPOCH_BITS - 1


# Names for `derived_seed`.
FROM_STEP, OF_WORKER = "from step", "of worker"


class StreamOffset(NamedTuple):
    """The position of a record in its stream; both fields count from 0."""

    epoch: int
    number: int


@dataclasses.dataclass(frozen=True)
class CursorState:
    """The start of the next batch."""

    seed: int  # determines order and augmentation
    count: int = 0  # records read so far
    # Stream -> offset of its next record; without streams that were not read yet.
    streams: Mapping[int, StreamOffset] = dataclasses.field(default_factory=dict)
    order: str = ""  # see `order_fingerprint`

    def offset(self, stream: int) -> StreamOffset:
        """The offset of the next record of a stream."""
        return self.streams.get(stream, StreamOffset(0, 0))

    def to_json(self) -> Dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> CursorState:
        """The inverse of `to_json`; KeyError, TypeError or ValueError for any other `entry`."""
        streams = {int(stream): StreamOffset(*pair) for stream, pair in entry["streams"].items()}
        return cls(int(entry["seed"]), int(entry["count"]), streams, str(entry["order"]))


class DataCursor:
    """The position of a training run in its data.

    Without a saved state, data that start at a `first_step` other than 0 get another order.
    """

    def __init__(self, saved: Optional[CursorState] = None, first_step: int = 0) -> None:
        self._saved = saved
        self._first_step = first_step
        self.state: Optional[CursorState] = None  # None before `begin`
        self.is_rejected = False  # True if `saved` did not fit the data, so that they start again

    def begin(self, seed: Optional[int], order: str) -> CursorState:
        """The state to start from: the saved one if the order of records is still the same.

        Data that have begun before, as on a worker that was lost, continue from the current state.
        `seed` None draws one; `order` is the `order_fingerprint` with this seed.
        """
        if self.state is not None and self.state.order == order:
            return self.state
        if self._saved is not None and self._saved.order == order:
            self.state = self._saved
        else:
            self.is_rejected = self._saved is not None
            new = derived_seed(seed, FROM_STEP, self._first_step)
            new = random.SystemRandom().randrange(2**31) if new is None else new
            self.state = CursorState(new, order=order)
        return self.state

    def advance(self, stream_indices: np.ndarray, seeds: np.ndarray) -> None:
        """Moves past a batch: its STREAM_INDEX int64 [B] and AUGMENTATION_SEED int64 [B, 2]."""
        assert self.state is not None
        streams = dict(self.state.streams)
        for stream_index in stream_indices.tolist():  # in order: the last one of a stream stays
            number, rest = stream_index & LAST_NUMBER, stream_index >> _NUMBER_BITS
            streams[rest >> _EPOCH_BITS] = StreamOffset(rest & LAST_EPOCH, number + 1)
        count = int(seeds[-1, 1]) + 1
        self.state = dataclasses.replace(self.state, count=count, streams=streams)


def derived_seed(seed: Optional[int], name: str, number: int) -> Optional[int]:
    """The seed of a worker, or of data that start at a step: `seed` itself for number 0.

    With the same seed, workers would augment the images that they read at the same time alike, and
    a later start would repeat the records and augmentations of the first run.
    """
    if seed is None or number == 0:
        return seed
    return zlib.crc32(f"{seed} {name} {number}".encode()) & 0x7FFFFFFF


def first_stream_index(stream: int, epoch: tf.Tensor) -> tf.Tensor:
    """The stream_index, int64, of record 0 of an epoch."""
    epochs = tf.constant(stream << _EPOCH_BITS, tf.int64) + epoch
    return tf.bitwise.left_shift(epochs, tf.constant(_NUMBER_BITS, tf.int64))


def order_fingerprint(reader: input_reader_pb2.InputReader, files: Any, order: Any) -> str:
    """A hash of everything that the order of records depends on, except a random seed (None).

    Modification times of `files`, a `stream.Files`, do not count, so files may be copied.
    """
    fields = {name: getattr(reader, name) for name in _READER_FIELDS}
    fields["sample_from_datasets_weights"] = list(reader.sample_from_datasets_weights)
    facts = [
        fields, files.paths, files.sizes, order.sample_1_of_n, list(order.shard), order.seed,
        global_seed(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
