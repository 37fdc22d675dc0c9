"""The inputs of served models: placeholders, and their images preprocessed for the network."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.facts import context_shape
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.batch import Preprocess
from inputs.decoding.decoder import decode_example_context, decode_example_image
from inputs.decoding.images import decode_image

SERIALIZED_EXAMPLE = "serialized_example"  # key of the Estimator's exporters
INPUTS = "inputs"  # key of every other export
FILES = "encoded_image_string_tensor"
COLOR_CHANNELS = 3


class Receiver(NamedTuple):
    """The placeholders of a model, and the network's inputs made from them."""

    placeholders: Dict[str, tf.Tensor]  # by the key of the signature's input
    inputs: tf.Tensor  # float32 [B, H, W, C], preprocessed and padded
    true_shapes: tf.Tensor  # int32 [B, 3], the real image inside the padded one


INPUT_TYPES: Registry[Any] = Registry("input_type")  # dtype of the placeholder of this name
INPUT_TYPES.register("image_tensor")(tf.uint8)
INPUT_TYPES.register(FILES, "tf_example")(tf.string)
INPUT_TYPES.register("float_image_tensor")(tf.float32)


def make_receiver(
    input_type: str,
    preprocess: Preprocess,
    input_shape: Optional[Sequence[Optional[int]]] = None,
    num_additional_channels: int = 0,
    max_batch: Optional[int] = None,
) -> Receiver:
    """Placeholder and preprocessed images of one input type, in the current graph.

    Args:
        input_type: "image_tensor" (uint8), "float_image_tensor" (float32, 0..255),
            "encoded_image_string_tensor" (files of any format and size) or "tf_example"
            (serialized `tf.train.Example`s with "image/encoded").
        input_shape: Shape of an image tensor, [B, h, w, c], None for any length.
        num_additional_channels: Channels beyond RGB. Image tensors have them after the first three,
            examples in "image/additional_channels/encoded"; an encoded image cannot have them.
        max_batch: A batch of more images fails with a message, before it is decoded.
    """
    if input_type == FILES and num_additional_channels:
        raise UsageError(
            f"input type {input_type} cannot be exported: num_additional_channels is "
            f"{num_additional_channels}, and an encoded image has red, green and blue only. Choose "
            "image_tensor, float_image_tensor or tf_example"
        )
    batch = input_shape[0] if input_shape else None
    if max_batch is not None and batch is not None and batch > max_batch:
        raise UsageError(
            f"input_shape of {input_type} has the batch size {batch}, above max_batch {max_batch}; "
            "leave out max_batch, for only batches of the shape are possible"
        )
    channels = COLOR_CHANNELS + num_additional_channels
    placeholder = _placeholder(input_type, input_shape, channels)
    fed = _limited(placeholder, max_batch)
    if placeholder.dtype != tf.string:
        return Receiver({INPUTS: placeholder}, *preprocess(tf.cast(fed, tf.float32)))

    def decode(content: tf.Tensor) -> tf.Tensor:
        if input_type == FILES:
            return decode_image({"image/encoded": content}, num_additional_channels=0)
        return decode_example_image(content, num_additional_channels)

    return Receiver(
        {INPUTS: placeholder}, *decode_and_preprocess(fed, preprocess, decode, channels)
    )


def _limited(placeholder: tf.Tensor, max_batch: Optional[int]) -> tf.Tensor:
    """The value of a placeholder, which fails if it has more than `max_batch` rows."""
    if max_batch is None or placeholder.shape[0] is not None:
        return placeholder
    check = tf1.debugging.assert_less_equal(
        tf.shape(placeholder)[0],
        max_batch,
        message=f"the batch has too many images: this model takes {max_batch} at most. Send fewer, "
        "or export it with a larger max_batch",
        summarize=1,
    )
    with tf.control_dependencies([check]):
        return tf.identity(placeholder)


def additional_channels(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> int:
    """Channels beyond RGB: of the first eval_input_reader, or of train_input_reader without one."""
    readers = [*pipeline_config.eval_input_reader, pipeline_config.train_input_reader]
    return int(readers[0].num_additional_channels)


def decode_and_preprocess(
    encoded: tf.Tensor,
    preprocess: Preprocess,
    decode: Callable[[tf.Tensor], tf.Tensor],
    num_channels: int = COLOR_CHANNELS,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Strings [B], images of different sizes -> inputs [B, H, W, C], true_shapes [B, 3].

    `decode` is a function, scalar string -> uint8 [h, w, num_channels].

    If `preprocess` keeps different sizes, the smaller images are padded with zeros at the bottom
    and right; if it makes them equal, H and W are static.
    """
    with tf.Graph().as_default():  # for the static shape of any image's inputs
        inputs, _ = preprocess(tf1.placeholder(tf.float32, [1, None, None, num_channels]))
        height, width, channels = inputs.shape.as_list()[1:]
    is_static = height is not None and width is not None

    def one_image(content: tf.Tensor) -> Tuple[Any, tf.Tensor]:
        inputs, true_shapes = preprocess(tf.cast(decode(content), tf.float32)[tf.newaxis])
        rows = inputs[0] if is_static else tf.RaggedTensor.from_tensor(inputs[0])
        return rows, true_shapes[0]

    shape = [height, width, channels]
    spec = tf.TensorSpec(shape, tf.float32)
    if not is_static:
        spec = tf.RaggedTensorSpec([None, None, channels], tf.float32, ragged_rank=1)
    signature = (spec, tf.TensorSpec([3], tf.int32))
    images, true_shapes = tf.map_fn(one_image, encoded, fn_output_signature=signature)
    if not is_static:
        images = images.to_tensor()
    return tf.ensure_shape(images, [None, *shape]), true_shapes


def create_predict_input_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, preprocess: Preprocess
) -> Callable[..., Any]:
    """The serving input receiver function of the Estimator's exporters.

    Its input is one serialized `tf.train.Example` (a scalar) under the key "serialized_example".
    The features are IMAGE [1, H, W, C] and TRUE_IMAGE_SHAPE [1, 3], and CONTEXT_FEATURES [1, S, F]
    and VALID_CONTEXT_SIZE [1] if the model attends to them.
    """
    context = context_shape(pipeline_config.model)
    num_additional_channels = additional_channels(pipeline_config)

    def serving_input_receiver_fn(params: Optional[Dict[str, Any]] = None) -> Any:
        serialized = tf1.placeholder(tf.string, [], name="tf_example")
        image = decode_example_image(serialized, num_additional_channels)
        inputs, true_shapes = preprocess(tf.cast(image, tf.float32)[tf.newaxis])
        features = {schema.IMAGE: inputs, schema.TRUE_IMAGE_SHAPE: true_shapes}
        if context is not None:
            features_of_context, count = decode_example_context(serialized, context)
            features[schema.CONTEXT_FEATURES] = features_of_context[tf.newaxis]
            features[schema.VALID_CONTEXT_SIZE] = count[tf.newaxis]
        return estimator.export.ServingInputReceiver(
            features=features, receiver_tensors={SERIALIZED_EXAMPLE: serialized}
        )

    return serving_input_receiver_fn


def _placeholder(
    input_type: str, input_shape: Optional[Sequence[Optional[int]]], channels: int
) -> tf.Tensor:
    dtype = INPUT_TYPES.get(input_type)
    if dtype is tf.string:
        if input_shape is not None:
            raise UsageError(
                f"input_shape {list(input_shape)} cannot be set for {input_type}: its input is a "
                "vector of strings"
            )
        return tf1.placeholder(dtype, [None], name=input_type)
    shape = [None, None, None, channels] if input_shape is None else list(input_shape)
    if len(shape) != 4 or shape[3] not in (None, channels):
        raise UsageError(
            f"input_shape of {input_type} is {shape}; it must be batch, height, width, {channels}, "
            "with None or -1 for any length"
        )
    shape = [None if length in (None, -1) else length for length in (*shape[:3], channels)]
    return tf1.placeholder(dtype, shape, name=input_type)
