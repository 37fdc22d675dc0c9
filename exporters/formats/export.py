"""Exports a checkpoint in several formats, and compares each with the checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config import files
from exporters import signatures
from exporters.formats import FoundModel, check
from exporters.formats.base import (
    FORMATS,
    LABEL_MAP_FILE,
    THRESHOLDS_FILE,
    ExportFormat,
    FormatOptions,
    Plan,
)
from exporters.formats.converters import check_installed
from exporters.formats.samples import images_to_compare
from exporters.image_files import list_images
from exporters.saved_model import (
    CHECKPOINT_NAME,
    INFERENCE_GRAPH_FILE,
    ExportedModel,
    NetworkOptions,
    RestoredNetwork,
    check_folder,
    describe,
    restored_network,
)
from inputs.serving import additional_channels
from model_fn.checkpoints.errors import RunError
from model_fn.serving.saved_model import copy_folder

DEFAULT_FORMATS = ("saved_model", "frozen_graph")
UNFINISHED = "unfinished_export"  # folder in that of the export; an earlier one stays until the end
REFUSED_SUFFIX = ".differs"  # suffix of a model whose outputs differ from the checkpoint's


class WrittenModel(NamedTuple):
    """A model of an export in one format."""

    name: str
    path: str
    num_bytes: int
    difference: Optional[check.Difference]  # from the checkpoint; None if it was not compared


class Export(NamedTuple):
    """An export in several formats."""

    exported: ExportedModel
    models: Tuple[WrittenModel, ...]


def export_formats(
    pipeline_config: Any,
    checkpoint_prefix: str,
    output_dir: str,
    formats: Sequence[ExportFormat],
    options: FormatOptions,
    network_options: Optional[NetworkOptions] = None,
    *,
    overwrite: bool = False,
) -> Export:
    """Writes `pipeline.config`, a checkpoint and each format to a folder, and compares them.

    SavedModel and frozen graph share one restored network; other formats build graphs of their
    own from its checkpoint. All is written beside an earlier export, which stays until the new
    one is whole and compared, and if a model is refused. A model is not compared if
    it takes more than color images: additional channels or context.

    Args:
        checkpoint_prefix: The trained checkpoint, or a model_dir for its latest.

    Raises:
        ConfigError: if a format cannot be written, or its converter is not installed; before
            anything is written.
        FileNotFoundError: if a sample image does not exist; before anything is written.
        RunError: if a module that runs a format is not installed, a converter fails, or a model
            differs from the checkpoint by more than the tolerance of its format, and is renamed.
    """
    network_options = network_options or NetworkOptions()
    channels = additional_channels(pipeline_config)
    types = signatures.resolve_input_types(network_options.input_types, channels)
    plan = Plan(pipeline_config, options, types, network_options.input_shape)
    for each in formats:
        each.check(plan)
    # Minutes of work would be lost if a converter were missing at the end.
    check_installed(formats, options.converter_python)
    list_images(options.sample_images)  # raises for what does not exist
    check_folder(output_dir, overwrite)
    is_new = not tf.io.gfile.exists(output_dir) or not tf.io.gfile.listdir(output_dir)
    with _unfinished(output_dir) as folder:
        with restored_network(
            pipeline_config, checkpoint_prefix, folder, network_options
        ) as network:
            models = _write(network, plan, formats, folder)
            paths = {
                each.format.name: os.path.join(output_dir, each.format.file) for each in models
            }
            exported = describe(
                network, output_dir, paths.get("saved_model"), paths.get("frozen_graph")
            )
        is_comparable = not channels and not network_options.side_inputs
        checkpoint = os.path.join(folder, CHECKPOINT_NAME)
        differences = _compare(plan, checkpoint, models) if is_comparable else {}
        refused = _refused(plan, models, differences, output_dir)
        # A refused model is the only thing that a failed export leaves beside an earlier one.
        if is_new or not refused:
            _copy_label_map_and_thresholds(exported, folder, formats)
            _remove_earlier(output_dir, (exported.label_map, exported.thresholds))
            _move(folder, output_dir, tf.io.gfile.listdir(folder))
        else:
            _move(folder, output_dir, [f"{each.format.file}{REFUSED_SUFFIX}" for each in refused])
    if refused:
        kept = "" if is_new else f"\nWhat was in {output_dir} is unchanged"
        raise RunError("\n".join(refused.values()) + kept)
    written = [
        WrittenModel(name, path, num_bytes(path), differences.get(name))
        for name, path in paths.items()
    ]
    return Export(exported, tuple(written))


@contextlib.contextmanager
def _unfinished(output_dir: str) -> Iterator[str]:
    """Context manager: an empty folder, UNFINISHED or a local one of a remote export."""
    if files.is_remote(output_dir):
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    folder = os.path.join(output_dir, UNFINISHED)
    with files.removed_if_empty(output_dir):
        # A killed export leaves it.
        shutil.rmtree(folder, ignore_errors=True)  # left by an export that was killed
        os.makedirs(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _move(folder: str, output_dir: str, names: Sequence[str]) -> None:
    """Moves files and folders, which replace those of the same names."""
    for name in (name.rstrip("/") for name in names):
        source, target = files.path_in(folder, name), files.path_in(output_dir, name)
        if tf.io.gfile.exists(target):
            _remove(target)
        if not files.is_remote(target):
            tf.io.gfile.rename(source, target)
        elif tf.io.gfile.isdir(source):  # object stores have no folders to rename
            copy_folder(source, target)
        else:
            tf.io.gfile.copy(source, target)


def num_bytes(path: str) -> int:
    """Size of a file, or of all files in a folder and below."""
    if not tf.io.gfile.isdir(path):
        return int(tf.io.gfile.stat(path).length)
    paths = [
        os.path.join(folder, name) for folder, _, names in tf.io.gfile.walk(path) for name in names
    ]
    # TensorFlow's file system in memory also lists parts of the names of other folders.
    files = [each for each in paths if tf.io.gfile.exists(each)]
    return sum(int(tf.io.gfile.stat(each).length) for each in files)


def _remove_earlier(output_dir: str, used: Sequence[Optional[str]]) -> None:
    """Removes the formats of an earlier export.

    Label map and thresholds stay if they are `used`, as those of an import in the same folder.
    """
    kept = [_absolute(each) for each in used if each is not None]
    for each in (FORMATS.get(name)() for name in FORMATS):
        path = os.path.join(output_dir, each.file)
        for earlier in (path, path + REFUSED_SUFFIX):
            if tf.io.gfile.exists(earlier):
                _remove(earlier)
    for name in (LABEL_MAP_FILE, THRESHOLDS_FILE, INFERENCE_GRAPH_FILE):
        path = os.path.join(output_dir, name)
        if tf.io.gfile.exists(path) and _absolute(path) not in kept:
            _remove(path)


def _absolute(path: str) -> str:
    return path if files.is_remote(path) else os.path.realpath(path)


def _remove(path: str) -> None:
    (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def _write(
    network: RestoredNetwork, plan: Plan, formats: Sequence[ExportFormat], folder: str
) -> List[FoundModel]:
    models = [FoundModel(each, os.path.join(folder, each.file)) for each in formats]
    return [each for each in models if each.format.write(network, plan, each.path)]


def _copy_label_map_and_thresholds(
    exported: ExportedModel, output_dir: str, formats: Sequence[ExportFormat]
) -> None:
    """Copies them beside formats that cannot contain them."""
    if {each.name for each in formats} == set(DEFAULT_FORMATS):
        return
    for source, name in (
        (exported.label_map, LABEL_MAP_FILE),
        (exported.thresholds, THRESHOLDS_FILE),
    ):
        target = os.path.join(output_dir, name)
        if source is not None and _absolute(source) != _absolute(target):
            tf.io.gfile.copy(source, target, overwrite=True)


def _compare(
    plan: Plan, checkpoint: str, models: Sequence[FoundModel]
) -> Dict[str, check.Difference]:
    """The differences by the name of the format."""
    config, options, _, input_shape = plan
    # The checkpoint's outputs are computed for one image at a time.
    if input_shape and input_shape[0] not in (None, 1):
        return {}
    images = images_to_compare(config, options.sample_images)
    images = check.fit_images(images, input_shape)
    reference = check.CheckpointDetector(config, checkpoint)
    expected = [reference.run(pixels[None]) for pixels in images]
    return {
        each.format.name: check.compare(
            config.model, expected, each.format.load(each.path, keeps_raw=True), images
        )
        for each in models
        if each.format.detects(plan)
    }


def _refused(
    plan: Plan,
    models: Sequence[FoundModel],
    differences: Mapping[str, check.Difference],
    output_dir: str,
) -> Dict[FoundModel, str]:
    """Reasons of the models that differ too much, which get names by which nobody serves them."""
    refused = {}
    for each in (each for each in models if each.format.name in differences):
        path = os.path.join(output_dir, each.format.file)
        difference = differences[each.format.name]
        why = check.why_refused(path, difference, each.format.tolerance(plan))
        if why is not None:
            tf.io.gfile.rename(each.path, each.path + REFUSED_SUFFIX)
            refused[each] = f"{why}. It is kept as {path}{REFUSED_SUFFIX}"
    return refused
