from __future__ import annotations

import pytest
import tensorflow as tf

from estimator_det.compat import failures
from estimator_det.programs import console


def test_the_words_of_a_failed_graph():
    """Its message begins with `Graph execution error` and source lines."""

    @tf.function
    def fails(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x, "loss")

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fails(tf.constant(float("nan")))
    assert str(caught.value.message).startswith("Graph execution error")
    assert failures.reason(caught.value) == "loss : Tensor had NaN values"


def test_the_words_of_a_failed_session():
    """Its message has the source lines and the node first, then the message of the kernel."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        size = tf.strings.to_number(tf.constant("ten"))
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(size)
    message = "StringToNumberOp could not correctly convert string: ten"
    assert failures.reason(caught.value) == console.error_text(caught.value) == message


def test_what_python_raises_has_its_place():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.numpy_function(lambda: {}["mine"], [], tf.float32)
        with pytest.raises(tf.errors.UnknownError) as caught:
            session.run(value)
    assert failures.reason(caught.value) == "KeyError: 'mine'"
    assert f'File "{__file__}", line' in console.error_text(caught.value)


def test_the_words_of_a_graph_on_another_machine():
    heading = (
        "Detected at node a/B defined at (most recent call last):\n<stack traces unavailable>\n"
    )
    message = f"Graph execution error:\n\n{heading}{heading}Unknown image file format."
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert failures.reason(error) == "Unknown image file format."


def test_the_words_of_a_failed_operation():
    with pytest.raises(tf.errors.NotFoundError) as caught:
        tf.io.read_file("/no/such file")
    assert failures.reason(caught.value) == "/no/such file; No such file or directory"


def test_other_errors():
    assert failures.reason(OSError("first\n\nsecond\n\n")) == "first"
    assert failures.reason(tf.errors.InternalError(None, None, "all\n\n")) == "all"
    assert failures.reason(ValueError("")) == ""


def test_a_kernel_of_this_process_is_no_task_of_a_cluster():
    node = "{{function_node __wrapped__SaveV2_device_/job:chief/replica:0/task:0/device:CPU:0}} "
    for message, expected in (
        (node + "gs://bucket/model.ckpt-5: HTTP response code 503 [Op:SaveV2]", False),
        ("gs://bucket/model.ckpt-5: HTTP response code 503", False),
        (node + "Connection reset\nfrom remote target /job:ps/replica:0/task:1:", True),
    ):
        error = tf.errors.UnavailableError(None, None, message)
        assert failures.names_task(error) is expected
