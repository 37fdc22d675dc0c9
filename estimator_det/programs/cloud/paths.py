"""Paths in Cloud Storage: gs://bucket/name."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError

SCHEME = "gs://"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_WILDCARD = re.compile(r"[*?\[]")


class CloudPath(NamedTuple):
    """A bucket, and a name in it: of an object, of a folder, or a pattern; "" for all of it."""

    bucket: str
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.name}"

    @property
    def is_pattern(self) -> bool:
        """True if the name has wildcards."""
        return bool(_WILDCARD.search(self.name))

    @property
    def prefix(self) -> str:
        """Common beginning of all names that match the path."""
        return _WILDCARD.split(self.name, maxsplit=1)[0]

    @property
    def folder(self) -> str:
        """The name as a folder: "" or with a slash at its end."""
        name = self.name.rstrip("/")
        return f"{name}/" if name else ""

    def join(self, name: str) -> CloudPath:
        """`name` inside this folder."""
        return CloudPath(self.bucket, self.folder + name)

    def matches(self, name: str) -> bool:
        """True if the path means the object `name`; wildcards match no slash."""
        if not self.is_pattern:
            return name == self.name or name.startswith(self.folder)
        wanted, parts = self.name.split("/"), name.split("/")
        return len(wanted) == len(parts) and all(
            fnmatch.fnmatchcase(part, pattern) for part, pattern in zip(parts, wanted)
        )


def is_cloud(path: str) -> bool:
    """True if a path is in Cloud Storage."""
    return path.startswith(SCHEME)


def parse(path: str) -> CloudPath:
    """The parts of gs://bucket/name."""
    if not is_cloud(path):
        raise UsageError(f"{quoted(path)} is not in Cloud Storage: give gs://BUCKET/NAME")
    bucket, _, name = path[len(SCHEME) :].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(
            f"{quoted(path)} has no valid name of a bucket: 3 to 222 lower-case letters, digits, "
            "dots, hyphens and underscores; give gs://BUCKET/NAME"
        )
    if "//" in f"/{name}":
        raise UsageError(
            f"{quoted(path)} has two slashes in a row, which Cloud Storage takes for a folder "
            "without a name: remove one"
        )
    return CloudPath(bucket, name)
