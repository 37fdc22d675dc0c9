"""The second pass of a conversion as an Apache Beam pipeline: an element for each shard.

A worker runs `shards.convert_shard`, as the processes of one machine do, so the bytes are the same.
Workers must see the folders of images and output under the same paths, as with a shared disk, and
have this package installed. Beam is needed here only: `pip install 'estimator-det[beam]'`.
"""

from __future__ import annotations

import shlex
from typing import Any, Callable, Iterator, Sequence

from estimator_det.config.text import nearest
from estimator_det.errors import UsageError
from inputs.conversion import shards
from inputs.conversion.engine import Runner
from inputs.conversion.shards import ConversionJob, ShardResult
from inputs.datasets.source import ConversionError

# Runs a transform on each element, such as a shard.
Pipeline = Callable[[Sequence[Any], Any], None]


def make_pipeline(name: str, options: str = "") -> Pipeline:
    """Pipelines on a runner of Beam, such as DirectRunner.

    Args:
        options: Further options of the pipeline, as on a command line.
    """
    try:
        import apache_beam as beam
        from apache_beam.options import pipeline_options
    except ImportError as error:
        raise UsageError(
            f"--runner needs Apache Beam, which cannot be imported: {error}. Remedy: pip install "
            "'estimator-det[beam]'"
        ) from None
    known = list(pipeline_options.StandardOptions.KNOWN_RUNNER_NAMES)
    if name not in known:
        hint = nearest(name, known) or "."
        raise UsageError(f"--runner {name!r} is not known{hint} Allowed: {known}")

    def run(elements: Sequence[Any], transform: Any) -> None:
        settings = pipeline_options.PipelineOptions([f"--runner={name}", *shlex.split(options)])
        with beam.Pipeline(options=settings) as pipeline:
            _ = pipeline | "Shards" >> beam.Create(elements, reshuffle=True) | transform

    return run


def make_runner(name: str, options: str = "") -> Runner:
    """A function for `engine.convert` that runs shards as `make_pipeline` does."""
    pipeline = make_pipeline(name, options)

    def run(job: ConversionJob) -> Iterator[ShardResult]:
        import apache_beam as beam

        pipeline(list(range(job.num_shards)), "Convert" >> beam.Map(_convert, job))
        for number in range(job.num_shards):
            result = shards.read_result(job, number)
            if result is None:
                raise ConversionError(missing(number, job.output_dir))
            yield result

    return run


def missing(shard: int, folder: str) -> str:
    """Error of a shard without a result after the pipeline."""
    return (
        f"shard {shard} is missing in {folder} after the pipeline: workers must see this folder "
        "under the same path"
    )


def _convert(shard: int, job: ConversionJob) -> int:
    shards.convert_shard(job, shard)
    return shard
