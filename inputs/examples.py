"""Serialized records -> features and labels of one image each: decode, augment, mix, collate.

Without steps that mix records, one parallel map does all of it. A mixture needs samples of several
records, its own and its partners. Partners are the records that follow in the same stream, so

* each record is decoded once, and once an epoch it is the first record of an image;
* records that cannot be used have disappeared: a partner is always a good one;
* a resumed run, which starts at the next record, mixes what the interrupted run would have mixed;
* a few batches of decoded samples wait in memory: batch size times (`num_sources` - 1) samples;
* where the data end after `num_epochs`, the last records are mixed with what is left of them.

`stop_at_step` counts the images that the pipeline returns: those of a step are known from the first
step and the images that each step uses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import failures, tf, tf1
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.augment.base import AugmentationStep, apply_steps, split_seed
from inputs.augment.mixing import (
    apply_mixture,
    image_limit,
    num_sources,
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
from inputs.guarding.guard import RECORD_ID, SEQUENCE_NUMBER, Retry
from inputs.records.cursor import CursorState
from inputs.records.stream import StreamRecord, unpack_record_ids
from inputs.sample import Sample

Batch = Tuple[Features, Features]
# A sample on its way through the datasets: nested dictionaries of tensors, without None.
Element = Dict[str, Any]


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

    @property
    def mixes(self) -> bool:
        """True if any image consists of several records."""
        return num_sources(self.steps) > 1


def make_retry(options: ExampleOptions, start: CursorState) -> Retry:
    """A function (serialized record, sequence number) -> the error of TensorFlow, or ""."""

    def retry(serialized: bytes, sequence_number: int) -> str:
        with tf.Graph().as_default(), tf1.Session() as session:
            number = tf.constant(sequence_number)
            element = _first_stage(options, start)(number, tf.constant(serialized))
            result = element if options.mixes else _finish(options, element)
            session.run(tf1.tables_initializer())
            try:
                session.run(result)
            except tf.errors.OpError as error:
                return failures.reason(error)
        return ""

    return retry


def make_example_fn(
    options: ExampleOptions, start: CursorState, guard: Any
) -> Callable[[tf.Tensor, Tuple[StreamRecord, tf.Tensor]], Any]:
    """A function (number, (`StreamRecord`, stream index)) -> features and labels, with guard keys.

    With steps that mix records, it returns the `Element` before the first mixture.
    """
    first_stage = _first_stage(options, start)

    # Tracing is several times faster without autograph, and nothing here needs it.
    @tf.autograph.experimental.do_not_convert
    def make_example(number: tf.Tensor, indexed_record: Tuple[StreamRecord, tf.Tensor]) -> Any:
        record, stream_index = indexed_record
        serialized = guard.add_pending(number, record.record_id, record.serialized)
        element = first_stage(number, serialized)
        element["record_ids"] = record.record_id[tf.newaxis]
        element["stream_index"] = stream_index
        return element if options.mixes else _finish(options, element)

    return make_example


def _first_stage(
    options: ExampleOptions, start: CursorState
) -> Callable[[tf.Tensor, tf.Tensor], Element]:
    """A function (sequence number, serialized record) -> the sample before the first mixture."""
    decode = make_decoder(options.reader, options.policy, options.collate.resizer)
    stage = split_stages(options.steps)[0]

    def first_stage(number: tf.Tensor, serialized: tf.Tensor) -> Element:
        sample = decode(serialized, _seed(start, number))
        originals = original_images(sample, options.collate)
        seeds = _stage_seeds(options, start, number, stage)
        sample = apply_steps(options.steps[: stage.stop], sample, seeds)
        if options.mixes:
            sample = prepare_for_mixing(sample, options.collate)
        sample = _reject_excess(options, sample)
        return {"number": number, "sample": _tensors_of(sample), "originals": originals}

    return first_stage


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


def _finish(options: ExampleOptions, element: Element) -> Batch:
    """Features and labels of a sample after all steps."""
    sample = _sample_of(element["sample"])
    features, labels = collate(sample, options.collate, element["originals"])
    if "record_ids" in element:
        features[SEQUENCE_NUMBER] = element["number"]
        features[RECORD_ID] = element["record_ids"][0]
        features[schema.STREAM_INDEX] = element["stream_index"]
    if options.mixes:
        partners = element["record_ids"][1:]
        features[schema.PARTNER_RECORDS] = tf.where(
            partners[:, tf.newaxis] < 0, tf.constant(-1, tf.int64), unpack_record_ids(partners)
        )
    return features, labels


def mix_records(
    elements: tf.data.Dataset, options: ExampleOptions, start: CursorState, num_parallel_calls: int
) -> tf.data.Dataset:
    """Features and labels, from the elements before the first mixture."""
    stages = split_stages(options.steps)[1:]
    distances = partner_distances(options.steps, options.batch_size)
    elements = elements.enumerate()  # the number of an image among those that the pipeline returns
    for stage, distance in zip(stages, distances):
        mix = _make_mix(options, start, stage, is_last=stage.stop == len(options.steps))
        count = options.steps[stage.start].num_records
        elements = with_partners(elements, count, distance, mix, num_parallel_calls)
    return elements


def with_partners(
    dataset: tf.data.Dataset,
    count: int,
    distance: int,
    change: Callable[[List[Any]], Any],
    num_parallel_calls: int,
) -> tf.data.Dataset:
    """Applies `change` to each element together with the `count` - 1 elements that follow it.

    They are `distance` apart; at the end of the dataset, they start again at the element itself.
    """

    @tf.autograph.experimental.do_not_convert
    def gather(*window: Any) -> Any:
        endless = tf.data.Dataset.zip(window if len(window) > 1 else window[0]).repeat()
        return change(
            [endless.skip(number).take(1).get_single_element() for number in range(count)]
        )

    windows = dataset.window(count, shift=1, stride=distance)
    return windows.map(gather, num_parallel_calls=num_parallel_calls, deterministic=True)


def _make_mix(
    options: ExampleOptions, start: CursorState, stage: range, is_last: bool
) -> Callable[[List[Any]], Any]:
    """A function from numbered elements to the mixture of them."""
    steps = options.steps[stage.start : stage.stop]
    limit = image_limit(steps[0], options.first_step, options.images_per_step)
    count = steps[0].num_records

    def mix(elements: List[Any]) -> Any:
        index, first = elements[0]
        allowed = tf.constant(True) if limit is None else index < limit
        sample, mixed = apply_mixture(
            steps,
            [_sample_of(element["sample"]) for _, element in elements],
            _stage_seeds(options, start, first["number"], stage),
            allowed,
        )
        ids = tf.concat([element["record_ids"] for _, element in elements], 0)
        is_first = tf.range(tf.size(ids)) < tf.size(first["record_ids"])
        record_ids = tf.where(mixed | is_first, ids, tf.constant(-1, tf.int64))
        record_ids = tf.ensure_shape(record_ids, [count * first["record_ids"].shape[0]])
        element = {**first, "sample": _tensors_of(sample), "record_ids": record_ids}
        return _finish(options, element) if is_last else (index, element)

    return mix


def _tensors_of(sample: Sample) -> Element:
    """The fields that are not None. Masks are 0 or 1, which fit into a quarter of the memory."""
    fields = {name: value for name, value in sample._asdict().items() if value is not None}
    if sample.masks is not None:
        fields["masks"] = tf.cast(sample.masks, tf.uint8)
    return fields


def _sample_of(fields: Element) -> Sample:
    sample = Sample(**fields)
    if sample.masks is None:
        return sample
    return sample._replace(masks=tf.cast(sample.masks, tf.float32))


def _seed(start: CursorState, sequence_number: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.constant(start.seed, tf.int64), tf.cast(sequence_number, tf.int64)])


def _stage_seeds(
    options: ExampleOptions, start: CursorState, number: tf.Tensor, stage: range
) -> List[tf.Tensor]:
    """A seed for each step of a stage; all are different."""
    if not stage:
        return []
    return split_seed(_seed(start, number), len(options.steps))[stage.start : stage.stop]
