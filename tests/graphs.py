"""Variables and values of tensors of the default graph."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from estimator_det.compat import tf1


def evaluate(fetches: Any, feed: Optional[Dict[Any, Any]] = None) -> Any:
    """The values of tensors, from the initial values of all variables."""
    # The graphs are small, and run once: optimizing them takes longer than running them.
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf1.Session(config=config) as session:
        session.run(tf1.global_variables_initializer())
        return session.run(fetches, feed)


def shapes(part: str = "") -> Dict[str, List[int]]:
    """The shapes of the variables whose names contain `part`, by name."""
    return {v.op.name: v.shape.as_list() for v in tf1.global_variables() if part in v.op.name}
