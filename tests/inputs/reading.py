"""Reading records as training does."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, Optional

import inputs
from estimator_det.compat import tf, tf1
from estimator_det.files import json_lines
from estimator_det.images.resize import make_resizer
from inputs.bad_records.log import FaultLog
from inputs.decoding.decoder import make_decoder
from inputs.sample import Sample


def train_fn(config: Any, *arguments: Any, **options: Any) -> Any:
    """The input function of training, whose preprocessing only resizes images."""
    resize = make_resizer(config.model.ssd.image_resizer).resize
    return inputs.create_train_input_fn(config, resize, *arguments, **options)


def entries_of(log: FaultLog) -> List[Dict[str, Any]]:
    """The JSON lines of a log's file."""
    assert log.path is not None
    return json_lines.read(log.path)


def run_in_graph(input_fn: Callable[[], Any], count: Optional[int] = None) -> List[Any]:
    """The first batches, or all, as an Estimator gets them: from an iterator in a TF1 graph."""
    found: List[Any] = []
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(input_fn())
        following = iterator.get_next()
        session.run([tf1.tables_initializer(), iterator.initializer])
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while count is None or len(found) < count:
                found.append(session.run(following))
    return found


def decoder_in_graph(*arguments: Any, **options: Any) -> Callable[[bytes], Sample]:
    """A decoder of serialized records in a TF1 graph, as an Estimator has, that is built once."""
    with tf.Graph().as_default():
        record = tf1.placeholder(tf.string, [])
        sample: Sample = make_decoder(*arguments, **options)(record)
        session = tf1.Session()
        session.run(tf1.tables_initializer())
        present = {name: value for name, value in sample._asdict().items() if value is not None}
        run = session.make_callable(present, [record])
    return lambda serialized: sample._replace(**run(serialized))


def no_rest(_: tf.Tensor, __: tf.Tensor, offset: tf.Tensor) -> Any:
    """The `ReadRest` of files that have no damage."""
    return tf.zeros([0], tf.string), tf.zeros([0], tf.int64), tf.identity(offset)
