"""Functions of sessions that are called very often."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from tensorflow.core.protobuf import config_pb2 as _config_pb2


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
