"""`estimator-det convert`: data sets of other tools to records, and records to COCO JSON."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any, Callable, Dict, List, Mapping, Optional

from estimator_det.console import printing
from estimator_det.console.bars import progress_bar
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    add_options,
    add_report_arguments,
    fields_of,
    positive,
    print_report,
    score,
    tile_side,
    write_report,
)
from inputs.datasets.converters import CONVERTERS
from inputs.datasets.source import SourceOptions
from inputs.machine import available_cpus

SUMMARY = "Converts a data set of another format to records, or records to COCO JSON"
EXAMPLE = (
    "--from coco --to tfrecord --images train2017 --annotations instances_train2017.json "
    "--output_dir records"
)
TFRECORD, COCO = "tfrecord", "coco"


def format_name(text: str) -> str:
    """The name of a format; `voc` is short for `pascal_voc`."""
    # The name by which most people know the format.
    return "pascal_voc" if text == "voc" else text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source_format",
        required=True,
        type=format_name,
        metavar="FORMAT",
        help=f"{', '.join(CONVERTERS)}, a format of your own (--import), or {TFRECORD}",
    )
    parser.add_argument(
        "--to",
        dest="target_format",
        required=True,
        choices=(TFRECORD, COCO),
        help=f"{TFRECORD}: records for training; {COCO}: a file of annotations, of records",
    )
    text = "an existing label map, whose ids are used (default: the ids of the source, or 1, 2, …)"
    add_options(parser, str, {"--label_map FILE": text})
    _add_source_arguments(parser.add_argument_group("the data set, with --to tfrecord"))
    _add_record_arguments(parser.add_argument_group("the records, with --to tfrecord"))
    _add_run_arguments(parser.add_argument_group("the run, with --to tfrecord"))
    _add_coco_arguments(parser.add_argument_group("with --from tfrecord --to coco"))


def _add_source_arguments(group: Any) -> None:
    texts = {
        "--images DIR": "folder that contains all images",
        "--annotations PATH": "file or folder of annotations",
        "--classes FILE": "yolo: data.yaml or names; open_images: ids and names",
        "--image_labels FILE": "open_images: classes of images",
        "--segmentations FILE": "open_images: names of masks",
        "--mask_images DIR": "open_images: folder of these masks",
    }
    add_options(group, str, texts)
    add_options(group, score, {"--min_score": "detection_jsonl: the lowest score read"})
    add_options(group, float, {"--max_megapixels": "limit of an image (default: 178.95697)"})


def _add_record_arguments(group: Any) -> None:
    texts = {
        "--output_dir DIR": "folder for records and report",
        "--split PART=SHARE,…": "shares of the parts, as train=0.8,val=0.2 or 0.8,0.2; lists of "
        "names, as train=train.txt,val=val.txt, or one list, as train,val=val.txt; or one part "
        "(default: train)",
    }
    add_options(group, str, texts)
    add_options(group, int, {"--num_shards": "files of each split (default: one for 1,000 images)"})
    add_options(
        group, bool, {"--masks": "write masks as PNG", "--clip_boxes": "clip boxes to the image"}
    )
    group.add_argument("--encode", choices=("jpeg", "png"), help="encode all images again")
    add_options(group, int, {"--quality": "quality of JPEG files encoded again (default: 92)"})
    text = "cut images into overlapping tiles of this many pixels a side, each a record"
    add_options(group, tile_side, {"--tiles": text})
    text = "what to do with rotation by EXIF (default: refuse)"
    add_options(group, str, {"--exif": text}, choices=("refuse", "apply"))


def _add_run_arguments(group: Any) -> None:
    text = "how much of an image is checked (default: decode)"
    add_options(group, str, {"--verify": text}, choices=("decode", "header"))
    text = "report all faults and stop, or skip the data (default: stop)"
    add_options(group, str, {"--on_error": text}, choices=("stop", "skip"))
    text = "what to do with copies of an image in one split (default: keep)"
    add_options(group, str, {"--duplicates": text}, choices=("keep", "skip", "stop"))
    add_options(group, bool, {"--overwrite": "replace earlier records"})
    add_options(group, positive, {"--jobs": "most processes (default: one for each CPU)"})
    texts = {
        "--runner": "run as an Apache Beam pipeline on this runner, e.g. DirectRunner",
        "--runner_options TEXT": "further options of Beam, e.g. '--project=p'",
    }
    add_options(group, str, texts)
    add_report_arguments(group)


def _add_coco_arguments(group: Any) -> None:
    text = "record files; may be repeated"
    add_options(group, str, {"--records PATTERN": text}, action="append")
    texts = {
        "--output FILE.json": "the COCO file",
        "--dataset FILE": "NAME.dataset.json of the conversion to records",
        "--write_images DIR": "also write the images there",
    }
    add_options(group, str, texts)


_TO_COCO = ("records", "output", "dataset", "write_images")
_BOTH = ("label_map", "source_format", "target_format", "verb", "run")


def run(options: argparse.Namespace) -> None:
    check_format(options.source_format)
    to_coco = options.target_format == COCO
    if to_coco != (options.source_format == TFRECORD):
        raise UsageError(
            f"--from {options.source_format} --to {options.target_format} is not supported: use "
            "--to tfrecord with another format, or --from tfrecord --to coco"
        )
    # 0 is a value.
    arguments = {n: v for n, v in vars(options).items() if v is not None and v is not False}
    wrong = [name for name in arguments if name not in _BOTH and (name in _TO_COCO) != to_coco]
    if wrong:
        raise UsageError(f"--{wrong[0]} has no effect with --to {options.target_format}; remove it")
    needed = ("records", "output", "label_map") if to_coco else ("images", "output_dir")
    missing = [f"--{name}" for name in needed if name not in arguments]
    if not to_coco:
        missing = [*dict.fromkeys(missing + missing_options(options.source_format, arguments))]
    if missing:
        raise UsageError(
            f"convert needs {' and '.join(missing)}; estimator-det convert --help describes them"
        )
    (_to_coco if to_coco else to_records)(arguments)


def check_format(name: str) -> None:
    """Refuses a data set format that neither this package nor a plug-in reads."""
    if name not in (*CONVERTERS, TFRECORD):
        what, remedy = CONVERTERS.refusal(name)
        raise UsageError(f"--from: the dataset format {what}; {remedy}")


def missing_options(source_format: str, arguments: Mapping[str, Any]) -> List[str]:
    """The options that a data set format needs and that are not given."""
    check_format(source_format)
    required = CONVERTERS.get(source_format).required
    return [f"--{name}" for name in required if arguments.get(name) is None]


def _to_coco(arguments: Dict[str, Any]) -> None:
    from estimator_det.files import ownership
    from inputs.conversion import to_coco
    from model_fn.checkpoints import writing

    export = to_coco.CocoOptions(**fields_of(to_coco.CocoOptions, arguments))
    with writing.writable_file(export.output, "output"), contextlib.ExitStack() as bars:
        ownership.check_file(export.output, "convert")
        counts = to_coco.export_coco(export, advance=_progress(bars)("writing", None))
    images, annotations = map(printing.counted, counts, ("image", "annotation"))
    console.print_line(f"{images} and {annotations}: {arguments['output']}")


def to_records(arguments: Dict[str, Any]) -> None:
    """Converts by the options of the verb."""
    from inputs.conversion import beam_pipeline, engine
    from inputs.conversion.images import ImageOptions
    from inputs.conversion.splits import parse_splits
    from model_fn.checkpoints import writing

    for name, needs in (("quality", ("encode", "exif", "tiles")), ("runner_options", ("runner",))):
        if name in arguments and not any(need in arguments for need in needs):
            raise UsageError(f"--{name} has no effect without --{needs[0]}; remove it")
    options = engine.ConvertOptions(
        format=arguments["source_format"],
        source=SourceOptions(**fields_of(SourceOptions, arguments)),
        splits=parse_splits(arguments.get("split", "train")),
        image=ImageOptions(**fields_of(ImageOptions, arguments)),
        **fields_of(engine.ConvertOptions, arguments),
    )
    run_shards = None
    if "runner" in arguments:
        run_shards = beam_pipeline.make_runner(
            arguments["runner"], arguments.get("runner_options", "")
        )
    with writing.writable_folder(options.output_dir, "output_dir"):
        with contextlib.ExitStack() as bars:
            conversion = engine.convert(
                options,
                jobs=arguments.get("jobs") or available_cpus(),
                run=run_shards,
                progress=_progress(bars),
            )
        _report(conversion, arguments)


def _progress(bars: contextlib.ExitStack) -> Callable[[str, Optional[int]], Callable[[int], Any]]:
    """A function that ends the previous progress bar and starts one for a part of the work."""

    def start(title: str, total: Optional[int]) -> Callable[[int], Any]:
        bars.close()
        return bars.enter_context(progress_bar(title, total, "images"))

    return start


def _report(conversion: Any, arguments: Dict[str, Any]) -> None:
    """Prints the report and writes it, as text, JSON and charts."""
    from estimator_det.programs import conversion_report
    from model_fn.checks import tables

    folder = arguments["output_dir"]
    lines = conversion_report.text_lines(conversion)
    document = conversion_report.to_dictionary(conversion)
    panels = [tables.panel(table) for table in conversion_report.make_tables(conversion)]
    write_report(folder, "convert_", lines, document, panels, f"records in {folder}")
    images = sum(split["images"] for split in conversion.tally["splits"].values())
    shown = lines if arguments.get("verbose") else conversion_report.summary_lines(conversion)
    closing = (
        f"{printing.counted(images, 'image')} in {conversion.seconds:.1f} s; report, charts and "
        f"all faults: {folder}"
    )
    print_report(document, [*shown, closing])
