"""Divides the records of a training run among the workers of a cluster.

Each stream of files is divided by itself. If a stream has at least as many files as there are
workers, worker `i` of `n` reads the files i, i + n, i + 2 n, … whole. If it has fewer, all workers
read all files in one order, and worker `i` keeps the records i, i + n, … . So parts never overlap,
and together they are all records, regardless of the seeds that workers draw.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

Shard = Tuple[int, int]  # the number of workers, and the index of this worker
WHOLE: Shard = (1, 0)


class WorkerParts(NamedTuple):
    """The parts of all workers."""

    num_workers: int
    streams: List[List[str]]  # the files of each stream that has any

    def describe(self, index: int) -> str:
        """A line about a worker's part."""
        return "; ".join(self._describe_stream(files, index) for files in self.streams)

    def _describe_stream(self, files: Sequence[str], index: int) -> str:
        worker = f"worker {index + 1} of {self.num_workers} reads"
        if len(files) < self.num_workers:
            return (
                f"{worker} one record in {self.num_workers} of each of the {len(files)} files, "
                "which are fewer than the workers"
            )
        text = f"{worker} {len(files[index :: self.num_workers])} of {len(files)} files"
        if len(files) % self.num_workers:
            text += (
                " (not all workers read the same number of files, so their epochs differ in length)"
            )
        return text

    def to_json(self) -> Dict[str, Any]:
        """All parts, for a file."""
        streams: List[Dict[str, Any]] = []
        for files in self.streams:
            if len(files) < self.num_workers:
                streams.append({"divided_by": "records", "files": files})
                continue
            parts = [files[index :: self.num_workers] for index in range(self.num_workers)]
            streams.append({"divided_by": "files", "files_of_workers": parts})
        return {"num_workers": self.num_workers, "streams": streams}
