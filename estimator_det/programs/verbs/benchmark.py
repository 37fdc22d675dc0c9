"""`estimator-det benchmark`: compares the formats of an export."""

from __future__ import annotations

import argparse
import os
from typing import Tuple

from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options

SUMMARY = "Compares the formats of an export: speed, memory, file size and mAP"
EXAMPLE = "exported --data eval.record --batch_sizes 1,8"
FOLDER = "benchmark"  # in the folder of the export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="EXPORT", help="folder of an export, or one of the models in it"
    )
    text = "TFRecord files, for images and the mAP; may be repeated"
    add_options(parser, str, {"--data PATTERN": text}, action="append", required=True)
    text = "label map of the records (default: the label map in the export)"
    add_options(parser, str, {"--label_map FILE": text})
    text = "images for each run; models of one batch size are measured at it only (default: 1,8)"
    add_options(parser, _numbers, {"--batch_sizes N,N,…": text}, default=(1, 8))
    text = "time of all runs for each batch size, after three to warm up (default: %(default)g)"
    add_options(parser, float, {"--seconds S": text}, default=5.0)
    add_options(parser, int, {"--num_images": "images of the records for the mAP (default: all)"})
    text = f"for benchmark.txt, .json and .png (default: the folder {FOLDER} beside the models)"
    add_options(parser, str, {"--output_dir": text})


def _numbers(text: str) -> Tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be whole numbers with commas between"
        ) from None


def run(options: argparse.Namespace) -> int:
    from estimator_det.files import ownership
    from exporters import formats
    from exporters.benchmark import compare, report
    from model_fn.checkpoints import writing

    export = formats.exported_models(options.model)[0].folder
    folder = options.output_dir or os.path.join(export, FOLDER)
    with writing.writable_folder(folder, "output_dir"):
        ownership.check_files(folder, "benchmark", report.FILES)
        document = compare.benchmark(
            options.model,
            compare.BenchmarkOptions(
                options.data,
                options.label_map,
                options.batch_sizes,
                options.seconds,
                options.num_images,
            ),
        )
        ownership.mark(folder, "benchmark")
        # Before what may fail: measuring takes minutes.
        for line in report.text_lines(document):
            console.print_line(line)
        console.print_line(f"written: {', '.join(report.write(document, folder))}")
        console.report_result(document)
    has_failed = any("error" in model for model in document["models"])
    return console.EXIT_FAILED if has_failed else console.EXIT_OK
