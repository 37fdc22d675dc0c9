"""Reports how the records are divided among the workers of a cluster: in the log, and in a file."""

from __future__ import annotations

import json
import logging
import os

from estimator_det.compat import tf
from inputs.records.sharding import Split
from model_fn.runs.cluster import Cluster

_LOG = logging.getLogger(__name__)

SPLIT_FILE = "data_split.json"


def report_split(model_dir: str, cluster: Cluster, split: Split) -> None:
    """Logs the part of this process; the chief writes all parts to `SPLIT_FILE`.

    Args:
        model_dir: Gets the file.
        split: Of the records among `cluster.readers`, in their order.
    """
    readers = cluster.readers
    _LOG.info("%s is %s", cluster.task, split.describe(readers.index(cluster.task)))
    if not cluster.is_chief:
        return
    entry = {"workers": [str(task) for task in readers], **split.to_json()}
    with tf.io.gfile.GFile(os.path.join(model_dir, SPLIT_FILE), "w") as file:
        file.write(json.dumps(entry, indent=1) + "\n")
