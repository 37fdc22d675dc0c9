"""Variables of a graph as golden numbers record them."""

from __future__ import annotations

import zlib
from typing import List, Sequence

from estimator_det.compat import tf, tf1


def variable_lines(graph: tf.Graph) -> List[str]:
    """Name, shape and trainability of each variable but the global step."""
    with graph.as_default():
        trainable = {v.op.name for v in tf1.trainable_variables()}
        return sorted(
            f"{v.op.name} {v.shape.as_list()} {v.op.name in trainable}"
            for v in tf1.global_variables()
            if v is not tf1.train.get_global_step()
        )


def crc32(lines: Sequence[str]) -> int:
    """Checksum of the sorted lines."""
    return zlib.crc32("\n".join(sorted(lines)).encode())
