"""Files of a data set: none outside of its folder is opened, and nothing but regular files."""

from __future__ import annotations

import functools
import os
import stat
from typing import Iterator, Tuple

from estimator_det.config import files
from estimator_det.config.printing import quoted
from estimator_det.config.text import ConfigError
from estimator_det.files import json_values
from inputs.datasets.source import SourceError, broken

MAX_FILE_BYTES = 64 * 2**20  # bytes of the annotations of one image
MAX_IMAGE_BYTES = 2**30
FOLDERS_KEPT = 1024  # resolved ones
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def real_folder(path: str, option: str) -> str:
    """The folder of an option without symbolic links."""
    if files.is_remote(path):
        raise ConfigError(
            None,
            f"{option} is {path}: conversion reads local folders",
            "copy or mount the data first",
        )
    if not os.path.isdir(path):
        raise ConfigError(None, f"{option} is {quoted(path)}: there is no such folder")
    return os.path.realpath(path)


class ImageFolder:
    """The images in a real folder. Each folder within is resolved once, not for every image.

    `what` they are is for messages.
    """

    def __init__(self, folder: str, what: str = "image") -> None:
        self._folder, self._what = folder, f"the {what}"
        self._resolve = functools.lru_cache(FOLDERS_KEPT)(os.path.realpath)

    def find(self, name: str, file: str, line: int) -> os.stat_result:
        """The status of an image; SourceError if it is not a regular file in the folder."""
        if not name or "\0" in name:
            raise SourceError("missing_key", file, line, f"{self._what}'s path is {quoted(name)}")
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError("outside_folder", file, line, f"{self._what} is {quoted(name)}")
        parent, base = os.path.split(os.path.join(self._folder, name))
        path = os.path.join(self._resolve(parent), base)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                path = os.path.realpath(path)
                status = os.stat(path)
        except OSError as error:
            self._check_inside(name, os.path.realpath(path), file, line)
            message = f"{self._what} {quoted(name)} cannot be opened: {error.strerror}"
            raise SourceError("no_image", file, line, message) from None
        self._check_inside(name, path, file, line)
        if not stat.S_ISREG(status.st_mode):
            message = f"{self._what} {quoted(name)} is {files.special_kind(path)}"
            raise SourceError("special_file", file, line, message)
        if status.st_size > MAX_IMAGE_BYTES:
            message = f"{self._what} {quoted(name)} has {status.st_size:,} bytes, more than 1 GiB"
            raise SourceError("huge_image", file, line, message)
        return status

    def _check_inside(self, name: str, path: str, file: str, line: int) -> None:
        if not path.startswith(self._folder.rstrip("/") + "/"):
            message = f"{self._what} {quoted(name)} is a symbolic link to {quoted(path)}"
            raise SourceError("outside_folder", file, line, message)


def require_file(path: str, option: str) -> str:
    """A local regular file, named by an option."""
    if files.is_remote(path):
        raise ConfigError(
            None, f"{option} is {path}: conversion reads local files", "copy the file first"
        )
    if kind := files.special_kind(path):
        raise ConfigError(None, f"{option} is {quoted(path)}: is {kind}, not a file")
    if not os.path.isfile(path):
        raise ConfigError(None, f"{option} is {quoted(path)}: there is no such file")
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

    SourceError for one of more than `longest` bytes, or that cannot be decoded.
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


class ImageFinder:
    """Finds the image of a path without suffix, in any case of letters of the suffix."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ends = [end for suffix in SUFFIXES for end in (suffix, suffix.upper())]

    def find(self, stem: str, file: str) -> str:
        """The path of the image below the folder; SourceError names the annotation `file`."""
        for end in self._ends:
            if os.path.lexists(os.path.join(self._folder, stem + end)):
                return stem + end
        message = f"no image {quoted(stem)} with one of the suffixes {', '.join(SUFFIXES)}"
        raise SourceError("no_image", file, 0, message)


class PathFinder:
    """Finds images by paths as a program wrote them: of the current folder, or absolute.

    `folder` is the real folder of the images.
    """

    def __init__(self, folder: str) -> None:
        self._prefix = os.path.join(folder, "")
        self._resolve = functools.lru_cache(FOLDERS_KEPT)(os.path.realpath)

    def find(self, path: str) -> str:
        """The path relative to the folder if it leads to a file in it, else the path as given."""
        parent, base = os.path.split(path)
        try:
            candidate = os.path.join(self._resolve(parent or "."), base)
            is_inside = candidate.startswith(self._prefix) and os.path.lexists(candidate)
        except ValueError:  # a null byte, or text that no file name can be
            return path
        return candidate[len(self._prefix) :] if is_inside else path
