"""What tf-slim leaves in collections of the graph, read here only."""

from __future__ import annotations

import re
from typing import Any, List

from estimator_det.compat import tf1

_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")


def collected_here(key: str) -> List[Any]:
    """The tensors or operations of a collection, those of this replica alone.

    Replicas of a `MirroredStrategy` build into one graph and share its collections; all but the
    first build in a name scope `replica_N`.
    """
    found = tf1.get_collection(key)
    if not tf1.distribute.has_strategy():
        return list(found)
    replica = _replica(tf1.get_default_graph().get_name_scope() + "/")
    return [each for each in found if _replica(each.name) == replica]


def _replica(name: str) -> int:
    match = _REPLICA.search(name)
    return int(match[1]) if match else 0
