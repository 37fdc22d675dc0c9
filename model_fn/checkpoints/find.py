"""Finds checkpoints by prefix, file or folder."""

from __future__ import annotations

import os
import re
import shlex
from typing import Optional, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import nearest
from estimator_det.errors import UsageError

_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_OF_PATTERNS = re.compile(r"[*?[\\]")


def find_checkpoint(prefix: str) -> str:
    """The checkpoint `prefix` names: a prefix, one of its files, or a folder (its latest).

    In the unpacked archive of a published model, checkpoints are in the folder `checkpoint`.

    Raises:
        FileNotFoundError: if there is none, with the nearest that exists.
    """
    refuse_pattern(prefix, "the checkpoint")
    stem = stem_of(prefix)
    if tf.io.gfile.exists(f"{stem}.index"):
        return stem
    refuse_model(prefix)
    inner = os.path.join(prefix, "checkpoint")
    if tf.io.gfile.isdir(inner):
        prefix = inner
    if tf.io.gfile.isdir(prefix):
        state = tf1.train.get_checkpoint_state(prefix)
        if state is not None:
            latest = str(state.model_checkpoint_path)
            # A run that was moved may name its checkpoints by the paths of its old place.
            for path in (latest, os.path.join(prefix, os.path.basename(latest))):
                if tf.io.gfile.exists(f"{path}.index") or tf.io.gfile.exists(path):
                    return path
            raise FileNotFoundError(
                f"no checkpoint {latest}, which the file 'checkpoint' in {prefix} names as the "
                "latest; give another one"
            )
        indices = sorted(tf.io.gfile.glob(os.path.join(prefix, "*.index")), key=_by_step)
        example = stem_of(indices[-1]) if indices else "model_dir/model.ckpt-2000"
        raise FileNotFoundError(
            f"no checkpoint in the folder {prefix}: it has no file named 'checkpoint', as "
            "training leaves it; give the prefix that the files of a trained checkpoint "
            f"share, e.g. {example}"
        )
    if tf.io.gfile.exists(prefix):  # the older format, of a single file
        return prefix
    folder = os.path.dirname(stem) or "."
    paths = [path[: -len(".index")] for path in tf.io.gfile.glob(f"{folder}/*.index")]
    if not paths:
        raise FileNotFoundError(f"no checkpoint {stem}, and no other one in {folder}")
    names = sorted(map(os.path.basename, paths), key=_by_step)
    wanted = _by_step(os.path.basename(stem))[0]
    steps = [name for name in names if _by_step(name)[0] == wanted]
    # If only the step differs, the newest is more useful than the nearest spelling.
    hint = nearest(os.path.basename(stem), steps[-1:] or names) or "."
    raise FileNotFoundError(f"no checkpoint {stem}{hint} {folder} holds: {', '.join(names)}")


def refuse_pattern(path: str, name: str) -> None:
    """Raises UsageError if TensorFlow, which looks for checkpoints by patterns, finds none here."""
    if character := _OF_PATTERNS.search(path):
        raise UsageError(
            f"{name} {path}: TensorFlow takes the {character[0]} for a part of a pattern and finds "
            "no checkpoint. Rename the folder, or give a path without it, such as a relative one"
        )


def newest_step(model_dir: str) -> Optional[int]:
    """The step in the name of the newest checkpoint; None without one.

    The checkpoint itself may contain a later step, if other workers took steps while the chief
    saved.
    """
    try:
        prefix = tf1.train.latest_checkpoint(model_dir)
    except ValueError:  # The `checkpoint` file is cut short; the start of a run repairs it.
        return None
    number = "" if prefix is None else prefix.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def _by_step(name: str) -> Tuple[str, int]:
    """Name and step of a checkpoint: `model.ckpt-20` -> `("model.ckpt", 20)`."""
    before, _, step = name.rpartition("-")
    return (before, int(step)) if step.isdecimal() else (name, -1)


def stem_of(path: str) -> str:
    """The prefix of a checkpoint, from itself or the path of one of its files."""
    for suffix in (".index", ".meta"):
        path = path.removesuffix(suffix)
    folder, name = os.path.split(path)
    return os.path.join(folder, name.split(".data-")[0])


def refuse_model(path: str) -> None:
    """Raises FileNotFoundError if a path names a file or folder that is no checkpoint."""
    if path.endswith(_ARCHIVES) and tf.io.gfile.exists(path):
        raise FileNotFoundError(
            f"no checkpoint {path}: it is an archive. Unpack it, and give the folder in it that "
            "has the checkpoint. Only init --pretrained and pretrained take archives (.tar.gz)"
        )
    is_list = os.path.basename(path) == "checkpoint" and not tf.io.gfile.isdir(path)
    if is_list and tf.io.gfile.exists(path):
        folder = os.path.dirname(path) or "."
        raise FileNotFoundError(
            f"no checkpoint {path}: it is the list of checkpoints in {folder}. Give this folder, "
            f"or the prefix of one of them, such as {os.path.join(folder, 'model.ckpt-2000')}"
        )
    kind = _model_kind(path)
    if kind is not None:
        raise FileNotFoundError(
            f"no checkpoint {path}: it is a published model of the format {kind}. Make a "
            f"checkpoint of it with: estimator-det import --from {kind} {shlex.quote(path)} "
            "--pipeline_config_path FILE --output_dir imported"
        )


def _model_kind(path: str) -> Optional[str]:
    """The format of a file or folder that is a model, as `import` names it; None of others."""
    markers = {
        "saved_model.pb": "saved_model",
        "model.json": "tfjs",
        "tensorflowjs_model.pb": "tfjs",
    }
    if tf.io.gfile.isdir(path):
        kinds = [kind for name, kind in markers.items() if tf.io.gfile.exists(f"{path}/{name}")]
        return kinds[0] if kinds and not tf1.train.get_checkpoint_state(path) else None
    if not tf.io.gfile.exists(path):
        return None
    suffixes = {".pb": "frozen_graph", ".tflite": "tflite"}
    kind_of_name = markers.get(os.path.basename(path))
    return kind_of_name or suffixes.get(os.path.splitext(path)[1])
