"""JSON values as texts of a Summary, which TensorBoard shows and evaluation results carry."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

from estimator_det.compat import tf, tf1


def add(summary: Any, tag: str, values: Dict[str, Any]) -> None:
    """Adds values under a tag."""
    metadata = tf1.SummaryMetadata(plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="text"))
    tensor = tf1.make_tensor_proto(json.dumps(values), tf.string)
    summary.value.add(tag=tag, metadata=metadata, tensor=tensor)


def find(serialized: Any, tag: str) -> Optional[Dict[str, Any]]:
    """The values under a tag of a serialized Summary; None if it has none, or is no Summary."""
    if not isinstance(serialized, bytes):
        return None
    for value in tf1.Summary.FromString(serialized).value:
        if value.tag == tag:
            found: Dict[str, Any] = json.loads(value.tensor.string_val[0])
            return found
    return None
