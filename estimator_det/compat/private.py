"""Parts of TensorFlow that have no public interface."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2 as _config_pb2
from tensorflow.core.protobuf import meta_graph_pb2 as _meta_graph_pb2
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.framework import op_def_registry as _op_def_registry
from tensorflow.python.framework import ops as _ops
from tensorflow.python.grappler import tf_optimizer as _tf_optimizer
from tensorflow.python.tpu import tpu_function as _tpu_function
from tensorflow.python.util import _pywrap_util_port

from estimator_det.compat import versions


@functools.cache
def _register_xla_kernels() -> None:
    """Compiles a function, because XLA registers its kernels at its first compilation."""
    with tf.init_scope():
        tf.function(tf.identity, jit_compile=True)(0.0)


def registered_kernels(operation_type: str, device_type: str) -> List[Any]:
    """Returns the `KernelDef` messages of an operation for a device, e.g. CPU or XLA_CPU_JIT."""
    if device_type.startswith("XLA"):
        _register_xla_kernels()
    kernels = _kernels.get_registered_kernels_for_op(operation_type).kernel
    return [kernel for kernel in kernels if kernel.device_type == device_type]


def operation_definition(operation_type: str) -> Optional[Any]:
    """Returns the `OpDef` message of an operation; None if this TensorFlow does not have it."""
    return _op_def_registry.get(operation_type)


def gradient_of(operation: Any, *gradients: Any) -> Any:
    """Computes the gradients of an operation's inputs from the gradients of its outputs.

    The operation may be any object with type, inputs, outputs and get_attr.
    """
    return _ops.gradient_registry.lookup(operation.type)(operation, *gradients)


def forward_operation(operation: Any) -> Any:
    """Returns the forward operation of a gradient's operation, and other operations themselves."""
    while getattr(operation, "_original_op", None) is not None:
        operation = operation._original_op
    return operation


def tflite_interpreter(content: bytes, *, keeps_all: bool = False) -> Any:
    """Returns an interpreter of a TFLite model; all tensors can be read if it `keeps_all`.

    The delegate that newer TensorFlows choose takes convolutions of uint8 for zeros, so such models
    have none there.
    """

    def make(resolver: Any) -> Any:
        return tf.lite.Interpreter(
            model_content=content,
            experimental_op_resolver_type=resolver,
            experimental_preserve_all_tensors=keeps_all,
        )

    resolvers = tf.lite.experimental.OpResolverType
    interpreter = make(resolvers.AUTO)
    details = interpreter.get_tensor_details()
    has_uint8 = any(each["dtype"] == np.uint8 and len(each["shape"]) == 4 for each in details)
    if has_uint8 and versions.release(tf.__version__) >= versions.WITHOUT_ESTIMATOR:
        return make(resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    return interpreter


def graph_of_function(graph: Any, name: str) -> Any:
    """Returns the body of a function in a graph's library."""
    return graph._get_function(name).graph


def add_control_input(operation: Any, before: Any) -> None:
    """Lets an operation that has been built wait for another one, as TensorFlow does itself."""
    operation._add_control_input(before)


def num_tpu_shards() -> Optional[int]:
    """Returns the number of cores of the TPU computation being built; None outside of one."""
    shards: Optional[int] = _tpu_function.get_tpu_context().number_of_shards
    return shards


def has_onednn() -> bool:
    """True if oneDNN's kernels compute on CPUs, as far as processor and environment let them."""
    return bool(_pywrap_util_port.IsMklEnabled())


def quick_callable(session: Any, fetch: Any, feed: Any) -> Callable[[Any], Any]:
    """Builds a function of the value of `feed` that returns the value of `fetch`, one tensor each.

    `Session.make_callable` with a feed examines fetches and feeds at each call, which takes longer
    than decoding a small image. Keras uses this function instead.
    """
    options = _config_pb2.CallableOptions()
    options.feed.append(feed.name)
    options.fetch.append(fetch.name)
    run = session._make_callable_from_options(options)
    # Strings need dtype object: NumPy's bytes type strips trailing NULs.
    dtype = feed.dtype.as_numpy_dtype
    return lambda value: run(np.asarray(value, dtype))[0]


def narrowed_graph(graph_def: Any, outputs: Sequence[str]) -> Any:
    """Rewrites a `GraphDef` so that what bfloat16 makes faster is computed in it.

    Operations keep their names, and outputs, also by name, their types.
    """
    meta_graph = _meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(outputs)
    config = _config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.append("auto_mixed_precision_onednn_bfloat16")
    options.min_graph_nodes = -1  # small graphs, too
    return _tf_optimizer.OptimizeGraph(config, meta_graph)


def saved_model_message() -> Any:
    """Creates an empty `SavedModel` message, the content of `saved_model.pb`."""
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel()


def object_graph_message(serialized: bytes) -> Any:
    """Parses the graph of objects of a checkpoint, a `TrackableObjectGraph` message."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    return trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized)


def tflite_schema() -> Any:
    """Imports the tables of TFLite's flatbuffers and the codes of its operations."""
    from tensorflow.lite.python import schema_py_generated

    return schema_py_generated


def tflite_quantization(interpreter: Any, index: int) -> Tuple[float, int]:
    """Returns scale and zero point of a tensor; the public way examines all tensors."""
    scale, zero = interpreter._get_tensor_details(index, 0)["quantization"]
    return scale, zero
