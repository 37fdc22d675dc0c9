"""The label map of an exported model: an asset that names its classes."""

from __future__ import annotations

import logging
from typing import Any, List, Optional

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from inputs.label_map import read_label_map

_LOG = logging.getLogger(__name__)


def find_label_map(pipeline_config: Any) -> Optional[str]:
    """The first existing label map of the configuration's readers, those of evaluation first."""
    return next((path for path in _named(pipeline_config) if tf.io.gfile.exists(path)), None)


def find_readable_label_map(pipeline_config: Any) -> Optional[str]:
    """Like `find_label_map`, but one that cannot be read is logged as a warning and left out.

    For exports at the end of a long training, which must not fail because names are missing.
    """
    path = next(iter(_named(pipeline_config)), None)
    try:
        path = find_label_map(pipeline_config) or path
        if path is not None:
            read_label_map(path)
    except (ConfigError, OSError, tf.errors.OpError) as error:
        _LOG.warning("Exporting without the label map %s: %s", path, error)
        return None
    return path


def add_label_map(path: str) -> None:
    """Makes a label map an asset of the SavedModel that the current graph becomes."""
    tf1.add_to_collection(tf1.GraphKeys.ASSET_FILEPATHS, tf.constant(path))


def _named(pipeline_config: Any) -> List[str]:
    readers = [*pipeline_config.eval_input_reader, pipeline_config.train_input_reader]
    return [reader.label_map_path for reader in readers if reader.label_map_path]
