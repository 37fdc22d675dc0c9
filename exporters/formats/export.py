"""Exports a checkpoint in several formats, and compares each with the checkpoint."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_det import files
from estimator_det.compat import require_v2_behavior, tf
from estimator_det.config import pipeline, plugins
from estimator_det.config.rules import require
from estimator_det.errors import RunError
from estimator_det.files import AnyPath, ownership
from estimator_det.protos import pipeline_pb2
from exporters import signatures
from exporters.formats import FoundModel, check, resolve_formats
from exporters.formats.base import FORMATS, ExportFormat, num_bytes
from exporters.formats.converters import check_installed
from exporters.formats.exchange import UNFINISHED, complete, exchange, locked, move, unfinished
from exporters.formats.samples import images_to_compare
from exporters.image_files import list_images
from exporters.loaded_model import LABEL_MAP_FILE, THRESHOLDS_FILE, parent_folder, resized
from exporters.network import (
    CHECKPOINT_NAME,
    INFERENCE_GRAPH_FILE,
    ExportOptions,
    RestoredNetwork,
    restored_network,
)
from inputs.serving import additional_channels
from model_fn.checkpoints.find import find_checkpoint

VERB = "export"
DEFAULT_FORMATS = ("saved_model", "frozen_graph")
REFUSED_SUFFIX = ".differs"  # suffix of a model whose outputs differ from the checkpoint's


class WrittenModel(NamedTuple):
    """A model of an export in one format."""

    name: str
    path: str
    num_bytes: int
    difference: Optional[check.ModelDifference]  # from the checkpoint; None if it was not compared
    limits: str = ""  # text of `ExportFormat.limits`


class ExportedModel(NamedTuple):
    """Paths and input types of an export."""

    models: Tuple[WrittenModel, ...]
    checkpoint: str  # prefix
    pipeline_config: str
    label_map: Optional[str]  # its copy is an asset of the SavedModel
    input_types: Tuple[str, ...]  # the first is `serving_default`
    thresholds: Optional[str]  # the file that was copied into the SavedModel's folder
    has_variables: bool  # True if the SavedModel's weights are variables, not constants

    def path(self, name: str) -> Optional[str]:
        """The file or folder of the model in a format; None if it was not written."""
        return next((each.path for each in self.models if each.name == name), None)

    @property
    def saved_model(self) -> Optional[str]:
        """The folder of the SavedModel; None if it was not written."""
        return self.path("saved_model")

    @property
    def frozen_graph(self) -> Optional[str]:
        """The frozen graph; None if it was not written, or the weights do not fit in its file."""
        return self.path("frozen_graph")


def export_saved_model(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint_prefix: AnyPath,
    output_dir: AnyPath,
    options: Optional[ExportOptions] = None,
    *,
    overwrite: bool = False,
    **fields: Any,
) -> ExportedModel:
    """Writes `saved_model/`, the frozen graph, a checkpoint and `pipeline.config` to a folder.

    The models are not compared with the checkpoint. Other arguments and errors: `export_formats`.

    Args:
        **fields: Fields of `ExportOptions`; they replace fields of `options`.
    """
    require(pipeline_config, "model", "graph_rewriter")
    return export_formats(
        pipeline_config,
        checkpoint_prefix,
        output_dir,
        resolve_formats(DEFAULT_FORMATS),
        dataclasses.replace(options or ExportOptions(), **fields),
        overwrite=overwrite,
        compare=False,
    )


def export_formats(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint_prefix: AnyPath,
    output_dir: AnyPath,
    formats: Sequence[ExportFormat],
    options: ExportOptions,
    *,
    overwrite: bool = False,
    compare: bool = True,
) -> ExportedModel:
    """Writes `pipeline.config`, a checkpoint and each format to a folder, and compares them.

    The network is built and restored once for all formats and for the comparison. All is written
    beside an earlier export, see `exchange`, which stays until the new one is whole and compared,
    and if a model is refused. A model is not compared if it takes more than color images:
    additional channels or context.

    Args:
        checkpoint_prefix: The trained checkpoint, or a model_dir for its latest.
        output_dir: A new or empty folder, or with `overwrite` an earlier export.

    Raises:
        UsageError: if a format cannot be written, its converter is not installed, or an option or
            a number of the model is not valid; before anything is written.
        FileNotFoundError: if the checkpoint, label map or a sample image does not exist.
        FileExistsError: if `output_dir` contains something else, or is the checkpoint's folder.
        FolderInUseError: if another process exports to it.
        DamagedCheckpointsError: if the checkpoint cannot be read.
        RunError: if the checkpoint does not fit the model, a module that runs a format is not
            installed, a converter fails, or a model differs from the checkpoint by more than the
            tolerance of its format, and is renamed.
    """
    require_v2_behavior()
    options = _checked(pipeline_config, formats, options)
    checkpoint_prefix, output_dir = os.fspath(checkpoint_prefix), os.fspath(output_dir)
    ownership.refuse_inputs(output_dir, [parent_folder(find_checkpoint(checkpoint_prefix))])
    with locked(output_dir):
        return _export(
            pipeline_config, checkpoint_prefix, output_dir, formats, options, overwrite, compare
        )


def _export(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint_prefix: str,
    output_dir: str,
    formats: Sequence[ExportFormat],
    options: ExportOptions,
    overwrite: bool,
    compare: bool,
) -> ExportedModel:
    """`export_formats` in a folder that no other export uses."""
    complete(output_dir, _all_names())
    is_new = ownership.check_folder(
        output_dir,
        VERB,
        overwrite=overwrite,
        is_earlier=_is_earlier(output_dir),
        ignored=[UNFINISHED],
    )
    has_other_inputs = additional_channels(pipeline_config) or options.side_inputs
    is_compared = compare and not has_other_inputs
    variants = list(dict.fromkeys(each.variant for each in formats if each.variant is not None))
    with unfinished(output_dir) as folder:
        with restored_network(
            pipeline_config, checkpoint_prefix, folder, options, variants
        ) as network:
            ownership.mark(folder, VERB)
            models = [FoundModel(each, os.path.join(folder, each.file)) for each in formats]
            models = [each for each in models if each.format.write(network, each.path)]
            differences = _compare(network, models) if is_compared else {}
            _copy_label_map_and_thresholds(network, folder, output_dir, formats)
            export = _describe(network, output_dir, models, differences)
        refused = _refused(network, models, differences, output_dir)
        # A refused model is the only thing that a failed export leaves beside an earlier one.
        if is_new or not refused:
            exchange(folder, output_dir, _all_names())
        else:
            names = [f"{each.format.file}{REFUSED_SUFFIX}" for each in refused]
            move(folder, output_dir, names)
    if refused:
        kept = "" if is_new else f"\nWhat was in {output_dir} is unchanged"
        raise RunError("\n".join(refused.values()) + kept)
    return export


def _checked(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    formats: Sequence[ExportFormat],
    options: ExportOptions,
) -> ExportOptions:
    """The options with resolved input types; refuses what cannot be written, before it is slow."""
    types = signatures.resolve_input_types(options.input_types, additional_channels(config))
    options = dataclasses.replace(options, input_types=types)
    for each in formats:
        each.check(config, options)
    # Minutes of work would be lost if a converter were missing at the end.
    check_installed(formats, options.converter_python)
    list_images(options.sample_images)  # raises for what does not exist
    return options


def _is_earlier(output_dir: str) -> bool:
    """True for an export without marker: a model under its usual name beside its configuration."""
    names = [FORMATS.get(name).file for name in FORMATS]
    paths = [os.path.join(output_dir, name) for name in names]
    config = os.path.join(output_dir, pipeline.PIPELINE_FILE)
    return tf.io.gfile.exists(config) and any(map(tf.io.gfile.exists, paths))


def _all_names() -> List[str]:
    """Names of the files and folders that an export may contain and another one may not."""
    names = [FORMATS.get(name).file for name in FORMATS]
    names += [f"{name}{REFUSED_SUFFIX}" for name in names]
    return [*names, LABEL_MAP_FILE, THRESHOLDS_FILE, INFERENCE_GRAPH_FILE, plugins.RECORD_FILE]


def _describe(
    network: RestoredNetwork,
    output_dir: str,
    models: Sequence[FoundModel],
    differences: Mapping[str, check.ModelDifference],
) -> ExportedModel:
    """Paths of an export, as they are in its folder."""
    written = [
        WrittenModel(
            each.format.name,
            os.path.join(output_dir, each.format.file),
            num_bytes(each.path),
            differences.get(each.format.name),
            each.format.limits(network.config, network.options),
        )
        for each in models
    ]
    return ExportedModel(
        tuple(written),
        os.path.join(output_dir, CHECKPOINT_NAME),
        os.path.join(output_dir, pipeline.PIPELINE_FILE),
        network.label_map,
        tuple(network.definitions),
        network.thresholds,
        "saved_model" in [each.name for each in written] and network.has_variables,
    )


def _copy_label_map_and_thresholds(
    network: RestoredNetwork, folder: str, output_dir: str, formats: Sequence[ExportFormat]
) -> None:
    """Copies them beside formats that cannot contain them, or if they are in the export's folder.

    An import puts its label map in its folder, which an export may replace.
    """
    is_default = {each.name for each in formats} == set(DEFAULT_FORMATS)
    for source, name in (
        (network.label_map, LABEL_MAP_FILE),
        (network.thresholds, THRESHOLDS_FILE),
    ):
        if source is None:
            continue
        is_in_place = _absolute(source) == _absolute(os.path.join(output_dir, name))
        if is_in_place or not is_default:
            tf.io.gfile.copy(source, os.path.join(folder, name), overwrite=True)


def _absolute(path: str) -> str:
    return path if files.is_remote(path) else os.path.realpath(path)


def _compare(
    network: RestoredNetwork, models: Sequence[FoundModel]
) -> Dict[str, check.ModelDifference]:
    """The differences by the name of the format."""
    options = network.options
    batch_size, *size, _ = options.input_shape or (None,) * 4
    # The checkpoint's outputs are computed for one image at a time.
    if batch_size not in (None, 1):
        return {}
    photos = images_to_compare(network.config, options.sample_images)
    images = [resized(pixels, size) for pixels in photos]
    expected = [network.run(pixels[None]) for pixels in images]
    return {
        each.format.name: check.compare(
            network.config.model, expected, each.format.load_with_raw(each.path), images
        )
        for each in models
        if each.format.detects(options)
    }


def _refused(
    network: RestoredNetwork,
    models: Sequence[FoundModel],
    differences: Mapping[str, check.ModelDifference],
    output_dir: str,
) -> Dict[FoundModel, str]:
    """Reasons of the models that differ too much, which get names by which nobody serves them."""
    refused = {}
    for each in (each for each in models if each.format.name in differences):
        path = os.path.join(output_dir, each.format.file)
        difference = differences[each.format.name]
        tolerance = each.format.tolerance(network.config, network.options)
        why = check.failure_reason(path, difference, tolerance)
        if why is not None:
            tf.io.gfile.rename(each.path, each.path + REFUSED_SUFFIX)
            refused[each] = f"{why}. It is kept as {path}{REFUSED_SUFFIX}"
    return refused
