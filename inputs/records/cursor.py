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
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.protos import input_reader_pb2

# What order depends on, beside files and seed.
_READER_FIELDS = (
    "shuffle",
    "shuffle_buffer_size",
    "filenames_shuffle_buffer_size",
    "num_readers",
    "read_block_length",
    "sample_from_datasets_weights",
)

# An stream_index is an int64 of stream, epoch and number.
_NUMBER_BITS, _EPOCH_BITS = 32, 24
LAST_NUMBER = 2**_NUMBER_BITS - 1
LAST_EPOCH = 2**_EPOCH_BITS - 1


class StreamOffset(NamedTuple):
    """Of a record in its stream; both count from 0."""

    epoch: int
    number: int


START = StreamOffset(0, 0)


@dataclasses.dataclass(frozen=True)
class CursorState:
    """What the next batch begins with.

    Attributes:
        seed: Of order and augmentation.
        count: Records that were taken so far.
        streams: Of each stream that records were taken from, the place of the next one.
        order: See `digest`.
    """

    seed: int
    count: int = 0
    streams: Mapping[int, StreamOffset] = dataclasses.field(default_factory=dict)
    order: str = ""

    def place(self, stream: int) -> StreamOffset:
        """Of the next record of a stream."""
        return self.streams.get(stream, START)

    def to_json(self) -> Dict[str, Any]:
        """As JSON takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> CursorState:
        """The inverse of `to_json`, also after a way through text.

        Raises:
            KeyError, TypeError or ValueError: if it is something else.
        """
        streams = {int(stream): StreamOffset(*place) for stream, place in entry["streams"].items()}
        return cls(int(entry["seed"]), int(entry["count"]), streams, str(entry["order"]))


class DataCursor:
    """Follows a training through its data.

    Args:
        saved: Where the training that is resumed was; None where that is not known.
        first_step: Of this run. Data that begin anew at another step than 0 do so in another order.
    """

    def __init__(self, saved: Optional[CursorState] = None, first_step: int = 0) -> None:
        self._saved = saved
        self._first_step = first_step
        self.position: Optional[CursorState] = None  # once an input function was called
        self.is_refused = False  # whether `saved` was of no use

    def begin(self, seed: Optional[int], order: str) -> CursorState:
        """Where to begin: at what was saved, if it still means the same record.

        Args:
            seed: Asked for; None for any.
            order: Of `digest`, with the same seed.
        """
        if self._saved is not None and self._saved.order == order:
            self.position = self._saved
        else:
            self.is_refused = self._saved is not None
            self.position = CursorState(drawn(seed_at(seed, self._first_step)), order=order)
        return self.position

    def note(self, stream_indices: np.ndarray, seeds: np.ndarray) -> None:
        """Takes note of a batch: int64 [B] and [B, 2], of the schema's STREAM_INDEX and seeds."""
        assert self.position is not None
        streams = dict(self.position.streams)
        for (
            stream_index
        ) in stream_indices.tolist():  # In order, so that the last one of a stream stays.
            number, rest = stream_index & LAST_NUMBER, stream_index >> _NUMBER_BITS
            streams[rest >> _EPOCH_BITS] = StreamOffset(rest & LAST_EPOCH, number + 1)
        count = int(seeds[-1, 1]) + 1
        self.position = dataclasses.replace(self.position, count=count, streams=streams)


def seed_at(seed: Optional[int], step: int) -> Optional[int]:
    """The seed of data that begin anew at a step: `seed` itself at step 0, else another one.

    The same seed would give a resumed run the records and augmentations of the first one again.
    """
    if seed is None or step == 0:
        return seed
    return zlib.crc32(f"{seed} from step {step}".encode()) & 0x7FFFFFFF


def drawn(seed: Optional[int]) -> int:
    """The seed, or one drawn where there is none."""
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def first_stream_index(stream: int, epoch: tf.Tensor) -> tf.Tensor:
    """The stream_index, int64, of record 0 of an epoch."""
    epochs = tf.constant(stream << _EPOCH_BITS, tf.int64) + epoch
    return tf.bitwise.left_shift(epochs, tf.constant(_NUMBER_BITS, tf.int64))


def digest(
    reader: input_reader_pb2.InputReader,
    files: Any,
    sample_1_of_n: int,
    shard: Sequence[int],
    seed: Optional[int],
) -> str:
    """Of all that the order of records depends on, but a seed that is drawn.

    Args:
        reader: Whose files they are.
        files: `records.Files`; of their times nothing is asked, so that they may be copied.
        sample_1_of_n: As of `records.record_dataset`.
        shard: As well.
        seed: Asked for.
    """
    fields = {name: getattr(reader, name) for name in _READER_FIELDS}
    fields["sample_from_datasets_weights"] = list(reader.sample_from_datasets_weights)
    of_graph = tf1.get_default_graph().seed  # TensorFlow mixes it into every other one.
    facts = [fields, files.paths, files.sizes, sample_1_of_n, list(shard), seed, of_graph]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
