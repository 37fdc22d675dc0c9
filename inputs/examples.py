"""Serialized records -> features and labels of one image each: decode, augment, mix, collate.

Without steps that mix records, one parallel map does all of it. A mixture needs samples of several
records, its own and its partners. Partners are the records that follow in the same stream, so

* each record is decoded once, and once an epoch it is the first record of an image;
* records that cannot be used have disappeared: a partner is always a good one;
* a resumed run, which starts at the next record, mixes what the interrupted run would have mixed;
* a few batches of decoded samples wait in memory: batch size times (`num_sources` - 1) samples;
* at the end of the last epoch, records are mixed with the few that follow, or with themselves.

`stop_at_step` counts the images that the pipeline returns: the first step and the images that each
step uses say which images a step gets.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_det.compat import failures, tf, tf1
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.augment.base import AugmentationStep, apply_steps, split_seed
from inputs.augment.mixing import (
    apply_mixture,
    image_limit,
    partner_distances,
    split_stages,
)
from inputs.bad_records.policy import BadRecordPolicy
from inputs.batch import (
    CollateOptions,
    Features,
    collate,
    num_excess_boxes,
    original_images,
    prepare_for_mixing,
)
from inputs.decoding.decoder import make_decoder
from inputs.decoding.example import checked
from inputs.records.cursor import CursorState
from inputs.records.stream import StreamRecord, unpack_record_ids
from inputs.sample import Sample

Batch = Tuple[Features, Features]

RECORD_IDS = "record_ids"  # inside the pipeline: int64 [k], see `Element`


class Element(NamedTuple):
    """A sample on its way to a batch."""

    number: tf.Tensor  # int64; the number of its record in the data, which seeds its augmentation
    record_ids: tf.Tensor  # int64 [k], its record and the partners; -1: partner not used
    stream_index: tf.Tensor  # int64, of its record
    sample: Sample
    originals: Features


@dataclasses.dataclass(frozen=True)
class ExampleOptions:
    """Steps from a record to an image of a batch."""

    reader: input_reader_pb2.InputReader
    collate: CollateOptions
    policy: BadRecordPolicy
    steps: Sequence[AugmentationStep] = ()  # in order
    batch_size: int = 1
    first_step: Optional[int] = 0  # global step of the first batch; None: unknown
    images_per_step: int = 1  # from this dataset


class ExampleSteps:
    """The steps from a record to an image of a batch, as functions for the maps of one graph."""

    def __init__(self, options: ExampleOptions, start: CursorState) -> None:
        self._options = options
        self._start = start
        self._decode = make_decoder(options.reader, options.policy, options.collate.resizer)
        self._first_stage, *self._mixtures = split_stages(options.steps)

    @property
    def mixes(self) -> bool:
        """True if any image consists of several records."""
        return bool(self._mixtures)

    def read(
        self, number: tf.Tensor, record: StreamRecord, stream_index: tf.Tensor
    ) -> Union[Element, Batch]:
        """A record -> the sample before the first mixture; without mixtures, its image."""
        options = self._options
        sample = self._decode(record.serialized, self._seed(number))
        originals = original_images(sample, options.collate)
        seeds = self._seeds(number, self._first_stage)
        sample = apply_steps(options.steps[: self._first_stage.stop], sample, seeds)
        if self.mixes:
            sample = _with_masks(prepare_for_mixing(sample, options.collate), tf.uint8)
        sample = _reject_excess(options, sample)
        record_ids = record.record_id[tf.newaxis]
        element = Element(number, record_ids, stream_index, sample, originals)
        return element if self.mixes else self._finish(element)

    def mix(self, elements: tf.data.Dataset, num_parallel_calls: int) -> tf.data.Dataset:
        """Images, from the samples before the first mixture."""
        steps = self._options.steps
        distances = partner_distances(steps, self._options.batch_size)
        elements = elements.enumerate()  # the number of an image that the pipeline returns
        for stage, distance in zip(self._mixtures, distances):
            count = steps[stage.start].num_records
            change = functools.partial(self._mix, stage)
            elements = with_partners(elements, count, distance, change, num_parallel_calls)
        return elements

    def retry(self, serialized: bytes, number: int) -> str:
        """Reads a record once more, and returns TensorFlow's error, "" if there is none."""
        with tf.Graph().as_default(), tf1.Session() as session:
            zero = tf.constant(0, tf.int64)
            record = StreamRecord(zero, tf.constant(serialized), zero)
            steps = ExampleSteps(self._options, self._start)
            result = steps.read(tf.constant(number, tf.int64), record, zero)
            session.run(tf1.tables_initializer())
            try:
                session.run([value for value in tf.nest.flatten(result) if value is not None])
            except tf.errors.OpError as error:
                return failures.reason(error)
        return ""

    def finish_batch(self, features: Features) -> Features:
        """Features of a batch, with RECORD and PARTNER_RECORDS."""
        features = dict(features)
        ids = features.pop(RECORD_IDS)
        records = unpack_record_ids(ids)
        features[schema.RECORD] = records[:, 0]
        if self.mixes:
            is_used = ids[:, 1:, tf.newaxis] >= 0
            features[schema.PARTNER_RECORDS] = tf.where(is_used, records[:, 1:], -1)
        return features

    def without_names(self, features: Features) -> Features:
        """Features of a batch, without names of images that the reader does not include."""
        if self._options.reader.include_source_id:
            return features
        names = (schema.SOURCE_ID, schema.FILENAME)
        return {key: value for key, value in features.items() if key not in names}

    def _mix(self, stage: range, elements: List[Tuple[tf.Tensor, Element]]) -> Any:
        """The mixture of numbered elements after the steps of a stage, numbered as the first."""
        options = self._options
        steps = options.steps[stage.start : stage.stop]
        index, first = elements[0]
        limit = image_limit(steps[0], options.first_step, options.images_per_step)
        sample, is_mixed = apply_mixture(
            steps,
            [_with_masks(element.sample, tf.float32) for _, element in elements],
            self._seeds(first.number, stage),
            tf.constant(True) if limit is None else index < limit,
        )
        ids = tf.concat([element.record_ids for _, element in elements], 0)
        is_first = tf.range(tf.size(ids)) < tf.size(first.record_ids)
        ids = tf.where(is_mixed | is_first, ids, tf.constant(-1, tf.int64))
        ids = tf.ensure_shape(ids, [len(elements) * first.record_ids.shape[0]])
        mixture = first._replace(sample=sample, record_ids=ids)
        if stage is self._mixtures[-1]:
            return self._finish(mixture)
        return index, mixture._replace(sample=_with_masks(sample, tf.uint8))

    def _finish(self, element: Element) -> Batch:
        """Features and labels of a sample after all steps."""
        features, labels = collate(element.sample, self._options.collate, element.originals)
        features[RECORD_IDS] = element.record_ids
        features[schema.AUGMENTATION_SEED] = self._seed(element.number)
        features[schema.STREAM_INDEX] = element.stream_index
        return features, labels

    def _seed(self, number: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.constant(self._start.seed, tf.int64), number])

    def _seeds(self, number: tf.Tensor, stage: range) -> List[tf.Tensor]:
        """A seed for each step of a stage; all are different."""
        if not stage:
            return []
        seeds = split_seed(self._seed(number), len(self._options.steps))
        return seeds[stage.start : stage.stop]


def with_partners(
    dataset: tf.data.Dataset,
    count: int,
    distance: int,
    change: Callable[[List[Any]], Any],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Applies `change` to each element together with `count` - 1 elements that follow it.

    The elements are `distance` apart; at the end of the dataset, the element itself comes again.
    """

    # A dataset of one element is a single component of a window; its structure may be any.
    @tf.autograph.experimental.do_not_convert
    def wrap(*element: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(element if len(element) > 1 else element[0])

    @tf.autograph.experimental.do_not_convert
    def gather(window: tf.data.Dataset) -> Any:
        endless = window.repeat()
        wrapped = (endless.skip(number).take(1).get_single_element() for number in range(count))
        return change([element.get_single_element() for element in wrapped])

    windows = dataset.map(wrap).window(count, shift=1, stride=distance)
    return windows.map(gather, num_parallel_calls=num_parallel_calls, deterministic=True)


def _with_masks(sample: Sample, dtype: tf.DType) -> Sample:
    """The sample with masks of a type: 0 and 1 fit into a quarter of the memory while they wait."""
    return sample if sample.masks is None else sample._replace(masks=tf.cast(sample.masks, dtype))


def _reject_excess(options: ExampleOptions, sample: Sample) -> Sample:
    """The sample; fails for a record that alone has too many boxes, if the policy rejects that."""
    if not options.policy.rejects("too_many_boxes"):
        return sample
    assert sample.image_level is not None
    num_excess = num_excess_boxes(sample, options.collate)
    boxes = checked(
        sample.boxes,
        tf.equal(num_excess, 0),
        sample.image_level[schema.SOURCE_ID],
        ["too_many_boxes"],
        f"max_number_of_boxes is {options.collate.max_boxes}. Number of boxes beyond it:",
        [num_excess],
    )
    return sample._replace(boxes=boxes)
