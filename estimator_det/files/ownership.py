"""A verb replaces only what it has written itself.

A folder is a verb's if it contains the verb's marker file; a file, if its beginning contains the
verb's signature. Anything else stays, regardless of options: `--overwrite` repeats a verb, it does
not delete the work of another one.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterable, Set

from estimator_det.files.atomic import is_remote
from estimator_det.files.atomic import write as write_text

_SIGNED_BYTES = 4096  # the signature is in these first bytes of a file
# Training writes these; another verb's marker may be older than a training in its folder.
_OF_RUN = re.compile(
    r"model\.ckpt-\d+\.index|events\.out\.tfevents\..*|progress\.jsonl|training\.lock"
)


def marker(verb: str) -> str:
    """Name of the file that marks a folder as written by a verb."""
    return f".estimator-det-{verb}"


def signature(verb: str) -> str:
    """Text at the beginning of a file that a verb has written."""
    return f"estimator-det {verb}"


def mark(folder: str, verb: str) -> None:
    """Marks a folder, which is created if it is missing, as written by a verb."""
    write_text(os.path.join(folder, marker(verb)), "")


def check_folder(
    folder: str,
    verb: str,
    *,
    overwrite: bool,
    is_earlier: bool = False,
    ignored: Iterable[str] = (),
) -> bool:
    """True if a folder is new or empty; False if the verb may replace it; raises otherwise.

    Args:
        is_earlier: The contents show that a version without markers wrote it by this verb.
        ignored: Names that do not count as contents.

    Raises:
        FileExistsError: if the folder contains something else, or `overwrite` is not set.
    """
    names = _names(folder) - set(ignored)
    if not names:
        return True
    if any(map(_OF_RUN.fullmatch, names)):
        raise FileExistsError(
            f"{folder} is the folder of a training run, which {verb} never replaces; give a new "
            "folder"
        )
    if marker(verb) not in names and not is_earlier:
        raise FileExistsError(
            f"{folder} is not empty, and contains no earlier {verb}; give a new folder"
        )
    if not overwrite:
        raise FileExistsError(
            f"{folder} is not empty: it contains an earlier {verb}; give a new folder, or set "
            "overwrite (--overwrite) to replace it"
        )
    return False


def check_files(folder: str, verb: str, names: Iterable[str]) -> None:
    """Refuses a folder that is not marked, if a verb would replace files or folders in it.

    The verb marks it when it writes its results.

    Raises:
        FileExistsError: if one of `names` exists, and the folder is not marked.
    """
    if _exists(os.path.join(folder, marker(verb))):
        return
    for path in (os.path.join(folder, name) for name in names):
        if _exists(path):
            raise _foreign(path, verb, "folder")


def check_file(path: str, verb: str) -> None:
    """Refuses a file that is not empty and that a verb did not write; FileExistsError."""
    if not (_exists(path) if is_remote(path) else os.path.isfile(path)):  # not a pipe or device
        return
    with _gfile().GFile(path, "rb") if is_remote(path) else open(path, "rb") as file:
        beginning = file.read(_SIGNED_BYTES)
    if beginning and signature(verb).encode() not in beginning:
        raise _foreign(path, verb, "file")


def _foreign(path: str, verb: str, output: str) -> FileExistsError:
    return FileExistsError(
        f"{path} exists, and {verb} is not known to have written it, so it is not replaced; give "
        f"another {output}, or move {os.path.basename(path)}"
    )


def refuse_inputs(output: str, inputs: Iterable[str]) -> None:
    """FileExistsError if a file or folder of results is also one of the inputs."""
    for path in inputs:
        if _absolute(path) == _absolute(output):
            raise FileExistsError(
                f"{output} is an input, and its results would be written there; give another "
                "place for them"
            )


def _gfile() -> Any:
    from estimator_det.compat import tf  # slow, and for remote paths only

    return tf.io.gfile


def _exists(path: str) -> bool:
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.lexists(path)


def _names(folder: str) -> Set[str]:
    if not _exists(folder):
        return set()
    names = _gfile().listdir(folder) if is_remote(folder) else os.listdir(folder)
    return {name.rstrip("/") for name in names}


def _absolute(path: str) -> str:
    return path.rstrip("/") if is_remote(path) else os.path.realpath(path)
