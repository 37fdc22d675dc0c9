"""`estimator-det show-data`: draws batches of the input pipeline, or one step of augmentation."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence, Tuple

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    add_config_arguments,
    add_options,
    config_path,
    load,
    positive,
)
from inputs.bad_records.kinds import KINDS

if TYPE_CHECKING:
    from estimator_det.protos import input_reader_pb2, pipeline_pb2

SUMMARY = "Draws batches as they enter the model, augmented and padded; or what one step changes"
EXAMPLE = "ssd.config --num_images 24 --output data.png"
NUM_IMAGES, NUM_RECORDS = 16, 4  # drawn by default, of batches and of augmentations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    add_options(
        parser, str, {"--output FILE.png": "the picture (default: %(default)s)"}, default="data.png"
    )
    text = (
        f"images to draw (default: {NUM_IMAGES}); with --augmentation, records to draw (default: "
        f"{NUM_RECORDS})"
    )
    add_options(parser, positive, {"--num_images": text})
    text = "seed of shuffling and augmentation: the same seed gives the same image"
    add_options(parser, int, {"--seed": text})
    text = "images per row; with --augmentation, results of each record (default: %(default)s)"
    add_options(parser, positive, {"--columns": text}, default=4)
    text = (
        "draw records before and after one step instead: the configured step with this "
        "name, else the step with its defaults, or with settings as proto text, e.g. 'mosaic: "
        "min_scale: 0.8'; may be repeated"
    )
    add_options(parser, str, {"--augmentation NAME[: SETTINGS]": text}, action="append", default=[])
    add_options(parser, bool, {"--eval": "draw evaluation batches, which are not augmented"})


def run(options: argparse.Namespace) -> None:
    if options.num_images is None:
        options.num_images = NUM_RECORDS if options.augmentation else NUM_IMAGES
    if options.augmentation and options.eval:
        raise UsageError("--augmentation and --eval: evaluation does not augment; give one of them")
    config = load(options, is_trusted=False)
    from estimator_det.files import ownership
    from model_fn.checkpoints import writing

    draw = _draw_steps if options.augmentation else _draw_batches
    with writing.writable_file(options.output, "output"):
        if not options.output.lower().endswith(".png"):
            raise UsageError(
                f"--output is {options.output}, and show-data writes PNG files: name a file that "
                "ends in .png"
            )
        ownership.check_file(options.output, "show-data")
        draw(config, options)


def _draw_steps(config: pipeline_pb2.TrainEvalPipelineConfig, options: argparse.Namespace) -> None:
    """A picture for each `--augmentation`; the names of several go into the names of the files."""
    from model_fn.drawing import before_after

    configured = config.train_config.data_augmentation_options
    steps = [before_after.find_step(text, configured) for text in options.augmentation]
    reader = config.train_input_reader
    seed = options.seed or 0
    # A mixture of four needs three more.
    read = before_after.read_samples(reader, options.num_images + 3, seed)
    files: Dict[str, str] = {}
    for number, step in enumerate(steps):
        page = before_after.draw_step(
            step,
            read.samples,
            reader,
            _names(reader),
            num_rows=options.num_images,
            num_after=options.columns,
            seed=seed,
        )
        file = options.output
        if len(steps) > 1:
            stem, extension = os.path.splitext(file)
            file = f"{stem}-{number + 1}-{step.WhichOneof('preprocessing_step')}{extension}"
        _save(page, file)
        files[step.WhichOneof("preprocessing_step")] = file
        console.print_line(f"{step.WhichOneof('preprocessing_step')}: {file}")
    if read.num_unusable:
        unusable = printing.counted(read.num_unusable, "record")
        console.print_line(f"skipped {unusable} that cannot be used; run check-data")
    _say_rotated(read.rotated)
    console.report_result(
        {"files": files, "skipped": read.num_unusable, "rotated": list(dict.fromkeys(read.rotated))}
    )


def _save(page: Any, file: str) -> None:
    """Writes a picture that a later one of the same name may replace."""
    from PIL.PngImagePlugin import PngInfo

    from estimator_det.files import ownership

    ownership.check_file(file, "show-data")
    information = PngInfo()
    information.add_text("Software", ownership.signature("show-data"))
    page.save(file, pnginfo=information)


def _say_rotated(names: Sequence[str]) -> None:
    """Names records whose pictures lie on their side, as training sees them."""
    for name in dict.fromkeys(names):
        kind = KINDS["exif_rotation"]
        console.print_line(f"{printing.plain(name)}: {kind.description}. Remedy: {kind.remedy}")


def _rotated(policy: Any, paths: Sequence[str], features: Any) -> List[str]:
    """Source ids of the records of a batch, partners included, whose EXIF data rotate them.

    The records are in the files `paths`.
    """
    from inputs import schema
    from inputs.records import tfrecord
    from model_fn.drawing import before_after

    names: List[str] = []
    for key in (schema.RECORD, schema.PARTNER_RECORDS):
        rows = features[key].reshape(-1, 2).tolist() if key in features else []
        for file, number in rows:
            record = tfrecord.read_record(paths[file], number) if file >= 0 else None
            if isinstance(record, bytes):
                names += before_after.rotated_names(record, policy)
    return names


def _draw_batches(
    config: pipeline_pb2.TrainEvalPipelineConfig, options: argparse.Namespace
) -> None:
    from estimator_det.errors import RunError
    from inputs.bad_records.log import FaultLog
    from inputs.bad_records.policy import make_policy
    from inputs.records import stream
    from model_fn.drawing import batch_grid
    from model_fn.evaluation import report

    faults = FaultLog()
    preprocess, reader, batches = _batches(config, options, faults)
    channels = 3 + reader.num_additional_channels
    to_pixels, exact = batch_grid.fit_pixels(preprocess, channels)
    policy = make_policy(reader)
    names = policy.label_map.names if policy.label_map is not None else {}
    paths = stream.list_files(reader, policy).paths
    cells: List[Any] = []
    rotated: List[str] = []
    for features, labels in batches:
        if not cells:
            _print_batch(features, labels)
        cells += batch_grid.cells_of_batch(features, labels, to_pixels, names)
        rotated += _rotated(policy, paths, features)
        if len(cells) >= options.num_images:
            break
    if not cells:
        raise RunError("the input pipeline returned no batch; run check-data on this configuration")
    cells = cells[: options.num_images]
    if not exact:
        console.print_line(
            "the detector's preprocessing is not an affine map of colours: the colours of each "
            "image are scaled to their own range"
        )
    title = f"{'evaluation' if options.eval else 'training'} batches of {config_path(options)}"
    page = batch_grid.draw_grid(cells, title=title, columns=options.columns)
    _save(page, options.output)
    report.print_faults(faults)
    _say_rotated(rotated)
    without = sum(not cell.labels for cell in cells)
    note = f", {without} of them without boxes" if without else ""
    console.print_line(f"{printing.counted(len(cells), 'image')}{note}: {options.output}")
    console.report_result(
        {
            "file": options.output,
            "images": len(cells),
            "images_without_boxes": without,
            "rotated": list(dict.fromkeys(rotated)),
        }
    )


def _batches(
    config: pipeline_pb2.TrainEvalPipelineConfig, options: argparse.Namespace, faults: Any
) -> Tuple[Any, Any, Iterator[Any]]:
    """The preprocessor, the reader, and batches as pairs (features, labels) of arrays."""
    import inputs
    from estimator_det.config.derived_models import evaluated_model
    from estimator_det.detectors import make_preprocessor
    from inputs.augment import make_steps
    from inputs.augment.mixing import num_sources

    readers = config.eval_input_reader if options.eval else [config.train_input_reader]
    if not readers:
        raise UsageError("the configuration has no eval_input_reader, which --eval needs")
    readers[0].include_source_id = True
    preprocess = make_preprocessor(evaluated_model(config) if options.eval else config.model)
    if options.eval:
        input_fn = inputs.create_eval_input_fn(config, preprocess, fault_log=faults)
        batch_size = config.eval_config.batch_size
    else:
        input_fn = inputs.create_train_input_fn(config, preprocess, options.seed, fault_log=faults)
        batch_size = config.train_config.batch_size
    # A smaller batch contains the same images, unless the distance of records that are mixed
    # depends on its size.
    augmentation = config.train_config.data_augmentation_options
    if options.eval or num_sources(make_steps(augmentation)) == 1:
        batch_size = max(1, min(batch_size, options.num_images))
    dataset = input_fn({"batch_size": batch_size})
    return preprocess, readers[0], dataset.as_numpy_iterator()


def _names(reader: input_reader_pb2.InputReader) -> Any:
    from inputs.label_map import read_label_map

    return read_label_map(reader.label_map_path).names if reader.label_map_path else {}


def _print_batch(features: Any, labels: Any) -> None:
    """Prints key, type, shape and range of every array of a batch."""
    console.print_line("first batch:")
    for title, arrays in (("features", features), ("labels", labels)):
        console.print_line(f"  {title}")
        for key, array in arrays.items():
            numeric = array.dtype.kind in "fiu" and array.size
            span = f"  {array.min():.6g} … {array.max():.6g}" if numeric else ""
            kind = "string" if array.dtype.kind == "O" else array.dtype.name
            console.print_line(f"    {key:<34} {kind:<8} {list(array.shape)!s:<20}{span}")
