"""Files of a data set: only regular files inside its folder are opened."""

from __future__ import annotations

import os
import stat
from typing import Iterator, Tuple

from estimator_det import files
from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError
from estimator_det.files import json_values
from inputs.datasets.source import SourceError, broken

MAX_FILE_BYTES = 64 * 2**20  # bytes of the annotations of one image
MAX_IMAGE_BYTES = 2**30
SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff",
)  # fmt: skip


def real_folder(path: str, option: str) -> str:
    """The folder of an option without symbolic links."""
    if files.is_remote(path):
        raise UsageError(
            f"{option} is {path}: conversion reads local folders; copy or mount the data first"
        )
    if not os.path.isdir(path):
        raise UsageError(f"{option} is {quoted(path)}: there is no such folder")
    return os.path.realpath(path)


def image_status(
    folder: str, name: str, file: str, line: int, what: str = "image"
) -> os.stat_result:
    """The status of an image in a real folder; SourceError if it is not a regular file there.

    Messages say `what` it is, and the `file` and `line` that name it.
    """

    def fault(kind: str, problem: str) -> SourceError:
        return SourceError(kind, file, line, f"the {what} {quoted(name)} {problem}")

    if not name or "\0" in name:
        raise SourceError("missing_key", file, line, f"the {what}'s path is {quoted(name)}")
    if os.path.isabs(name) or ".." in name.split("/"):
        raise SourceError("outside_folder", file, line, f"the {what} is {quoted(name)}")
    path = os.path.realpath(os.path.join(folder, name))
    if not path.startswith(os.path.join(folder, "")):
        raise fault("outside_folder", f"is a symbolic link to {quoted(path)}")
    try:
        status = os.stat(path)
    except OSError as error:
        raise fault("no_image", f"cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise fault("special_file", f"is {files.special_kind(path)}")
    if status.st_size > MAX_IMAGE_BYTES:
        raise fault("huge_image", f"has {status.st_size:,} bytes, more than 1 GiB")
    return status


def find_image(folder: str, stem: str, file: str, line: int = 0) -> str:
    """The image with this path without suffix, in any case of letters of the suffix.

    The path is relative to the folder; an error names `file` and `line` of the annotation.
    """
    for suffix in SUFFIXES:
        for end in (suffix, suffix.upper()):
            if os.path.lexists(os.path.join(folder, stem + end)):
                return stem + end
    message = f"no image {quoted(stem)} with one of the suffixes {', '.join(SUFFIXES)}"
    raise SourceError("no_image", file, line, message)


def path_in_folder(path: str, folder: str) -> str:
    """The path relative to a real folder, of a path that is absolute or of the current folder.

    A path that leads to no file in the folder stays as it is.
    """
    parent, base = os.path.split(path)
    try:
        candidate = os.path.join(os.path.realpath(parent), base)
        is_inside = candidate.startswith(os.path.join(folder, "")) and os.path.lexists(candidate)
    except ValueError:  # a null byte, or text that no file name can be
        return path
    return os.path.relpath(candidate, folder) if is_inside else path


def require_file(path: str, option: str) -> str:
    """A local regular file, named by an option."""
    if files.is_remote(path):
        raise UsageError(f"{option} is {path}: conversion reads local files; copy the file first")
    if kind := files.special_kind(path):
        raise UsageError(f"{option} is {quoted(path)}: is {kind}, not a file")
    if not os.path.isfile(path):
        raise UsageError(f"{option} is {quoted(path)}: there is no such file")
    return path


def annotation_files(folder: str, suffixes: Tuple[str, ...]) -> Iterator[str]:
    """Files below a folder that end in one of `suffixes`, sorted by name within each folder.

    Symbolic links to folders are not followed.
    """
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(suffixes):
                yield os.path.join(parent, name)


def read_annotation(path: str, folder: str) -> str:
    """The text of an annotation file of one image."""
    check_annotation(path, folder)
    with open(path, "rb") as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise broken(path, line, f"byte {content[error.start]:#04x} is not UTF-8") from None


def read_lines(path: str, longest: int, errors: str = "strict") -> Iterator[Tuple[int, str]]:
    """Numbers and texts of the lines of a UTF-8 file.

    SourceError for a line of more than `longest` bytes, or that cannot be decoded.
    """
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise broken(path, number, f"more than {longest:,} bytes")
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                message = f"byte {line[error.start]:#04x} is not UTF-8"
                raise broken(path, number, message) from None


def json_members(path: str) -> Iterator[json_values.Value]:
    """Reads the members of a file's JSON object, lists entry by entry."""
    try:
        with open(path, "rb") as file:
            yield from json_values.read_members(file)
    except json_values.JsonError as error:
        raise broken(path, error.line, str(error)) from None


def check_annotation(path: str, folder: str) -> None:
    """Raises SourceError unless the annotations of one image are a small file in `folder`."""
    if os.path.commonpath([folder, os.path.realpath(path)]) != folder:
        raise SourceError("outside_folder", path, 0, "the annotation is a symbolic link")
    if kind := files.special_kind(path):
        raise broken(path, 0, f"it is {kind}, not a file")
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise broken(path, 0, f"it cannot be read: {error.strerror}") from None
    if size > MAX_FILE_BYTES:
        raise broken(path, 0, f"it has {size:,} bytes; allowed: {MAX_FILE_BYTES:,}")
