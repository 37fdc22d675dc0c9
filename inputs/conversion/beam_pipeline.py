"""The second pass of a conversion as an Apache Beam pipeline: an element for each shard.

A worker runs `shards.convert_shard`, as the processes of one machine do, so the bytes are the same.
Workers must see the folders of images and output under the same paths, as with a shared disk, and
have this package installed. Beam is needed here only: `pip install 'estimator-det[beam]'`.
"""

from __future__ import annotations

import shlex
from typing import Iterator

from estimator_det.config.text import nearest
from estimator_det.errors import UsageError
from inputs.conversion import shards
from inputs.conversion.engine import Runner
from inputs.conversion.shards import ConversionJob, ShardResult
from inputs.datasets.source import ConversionError


def make_runner(name: str, options: str = "") -> Runner:
    """A function for `engine.convert` that runs shards on a runner of Beam, such as DirectRunner.

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

    def run(job: ConversionJob) -> Iterator[ShardResult]:
        settings = pipeline_options.PipelineOptions([f"--runner={name}", *shlex.split(options)])
        with beam.Pipeline(options=settings) as pipeline:
            _ = (
                pipeline
                | "Shards" >> beam.Create(list(range(job.num_shards)), reshuffle=True)
                | "Convert" >> beam.Map(_convert, job)
            )
        for number in range(job.num_shards):
            result = shards.read_result(job, number)
            if result is None:
                raise ConversionError(
                    f"shard {number} is missing in {job.output_dir} after the pipeline: workers "
                    "must see this folder under the same path"
                )
            yield result

    return run


def _convert(shard: int, job: ConversionJob) -> int:
    shards.convert_shard(job, shard)
    return shard
