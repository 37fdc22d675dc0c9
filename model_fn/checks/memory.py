"""Memory of training on the host, estimated from its graph and its records."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, NamedTuple

from estimator_det.compat import tf, tf1
from estimator_det.errors import Problem, RunError, warning
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.machine import available_memory
from inputs.pipeline import decoded_at_once
from inputs.records import stream as records

# Memory of TensorFlow before there is a batch, and of each operation of the graph, in
# the session, measured on networks of 4,600 to 15,400 operations.
BASE_BYTES = 0.5e9
OPERATION_BYTES = 45e3
SAMPLED_RECORDS = 64
# tf.data runs at most this many images at once, and holds what each is made of.
_COPIES_IN_FLIGHT = 3


class Memory(NamedTuple):
    """Bytes that training takes."""

    graph: int  # TensorFlow's own
    parameters: int  # bytes of the model's variables
    slots: int  # bytes of the optimizer and moving averages
    gradients: int
    activations: int  # that the backward pass needs
    batch: int  # features and labels of one batch
    images: int  # number of images in a batch

    @property
    def training(self) -> int:
        """The peak of a training process, without its input pipeline."""
        step = self.parameters + self.slots + self.gradients + self.activations + 2 * self.batch
        return self.graph + step


class InputMemory(NamedTuple):
    """Bytes that the input pipeline takes on the host."""

    shuffled: int  # encoded records in the shuffle buffer
    decoded: int  # images being decoded and augmented
    prefetched: int  # batches that wait

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.shuffled + self.decoded + self.prefetched


def _size(tensor: tf.Tensor) -> int:
    count = tensor.shape.num_elements()
    if count is None or tensor.dtype in (tf.string, tf.resource):
        return 0
    return int(count * tensor.dtype.base_dtype.size)


def variable_bytes(variables: Iterable[tf.Variable]) -> int:
    """Memory of the values of variables."""
    return sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in variables)


def training_memory(graph: tf.Graph, batch: Dict[str, tf.Tensor]) -> Memory:
    """Memory of training, from its graph, the default one, and the placeholders of a batch."""
    model = set(tf1.trainable_variables())
    statistics = {v for v in tf1.global_variables() if "/moving_" in v.op.name} - model

    backward = {op for op in graph.get_operations() if op.name.startswith("gradients/")}
    kept = {
        tensor.ref(): tensor
        for op in backward
        for tensor in op.inputs
        # Reads of variables hand out the variable's own memory.
        if tensor.op not in backward and tensor.op.type not in ("ReadVariableOp", "Const")
    }
    # A gradient op frees its inputs one by one: the largest pair of them is alive at once.
    largest = max((_size(tensor) for op in backward for tensor in op.outputs), default=0)
    return Memory(
        graph=int(BASE_BYTES + OPERATION_BYTES * len(graph.get_operations())),
        parameters=variable_bytes(model | statistics),
        slots=variable_bytes(set(tf1.global_variables()) - model - statistics),
        gradients=variable_bytes(model),
        activations=sum(_size(tensor) for tensor in kept.values()) + 2 * largest,
        batch=sum(_size(tensor) for tensor in batch.values()),
        images=batch[schema.IMAGE].shape[0],
    )


def input_memory(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, memory: Memory, cores: int
) -> InputMemory:
    """Memory of the input pipeline of training on a host with `cores` processors.

    The size of encoded records is measured on the first `SAMPLED_RECORDS` of the data. Raises
    FileNotFoundError, RunError or tf.errors.OpError if there are none.
    """
    reader = pipeline_config.train_input_reader
    paths = [p for pattern in records.input_patterns(reader) for p in records.find_files(pattern)]
    dataset = tf.data.TFRecordDataset(paths[0], records.compression_of(paths[0]))
    sizes = [len(record.numpy()) for record in dataset.take(SAMPLED_RECORDS)]
    if not sizes:
        raise RunError(f"{paths[0]}: the file has no records")
    buffered = (reader.shuffle_buffer_size if reader.shuffle else 1) * sum(sizes) / len(sizes)
    per_image = memory.batch / memory.images
    return InputMemory(
        shuffled=int(min(buffered, sum(tf.io.gfile.stat(path).length for path in paths))),
        decoded=int(decoded_at_once(reader, memory.images, cores) * _COPIES_IN_FLIGHT * per_image),
        prefetched=int((reader.num_prefetch_batches + 1) * memory.batch),
    )


def check_memory(needed: int, batch_size: int) -> Iterator[Problem]:
    """A warning if this machine has less memory than the `needed` bytes."""
    present = available_memory()
    if needed > present:
        yield warning(
            "train_config.batch_size",
            f"training takes about {needed / 1e9:.1f} GB at batch {batch_size}, this machine has "
            f"{present / 1e9:.1f} GB",
            "lower it, the size in image_resizer or shuffle_buffer_size, or train on a machine "
            "with more memory",
        )
