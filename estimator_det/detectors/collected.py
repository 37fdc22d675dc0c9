"""Reads what tf-slim adds to collections of the graph; nothing else reads them."""

from __future__ import annotations

import re
from typing import Any, List

from estimator_det.compat import tf1

_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")


def collection_of_replica(key: str) -> List[Any]:
    """Returns the tensors or operations of a collection that belong to this replica.

    Replicas of a `MirroredStrategy` build into one graph and share its collections; all but the
    first one build in a name scope `replica_N`. The body of a loop, e.g. over parts of a batch,
    shares the collections of the outer graph.
    """
    graph = tf1.get_default_graph()
    members = [member for member in tf1.get_collection(key) if member.graph is graph]
    if not tf1.distribute.has_strategy():
        return members
    replica = _replica(graph.get_name_scope() + "/")
    return [member for member in members if _replica(member.name) == replica]


def _replica(name: str) -> int:
    match = _REPLICA.search(name)
    return int(match[1]) if match else 0
