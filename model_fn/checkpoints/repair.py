"""Checks the checkpoints of a model_dir and repairs the folder, so that training can resume.

How TensorFlow writes model.ckpt-N: shards and their index go to model.ckpt-N_temp under names with
`.tempstate`; the shards are renamed to their final names; the merged index is written in place as
model.ckpt-N.index and model.ckpt-N.meta; then `checkpoint`, which names the newest, is replaced by
renaming a `.tmp` file. A process killed in between leaves temporary files, shards without an index,
or a short index; `checkpoint` still names the one before. The one moment at which a whole
checkpoint is at risk is when it is saved again under the same name: see `model_fn.runs.saver`.

TensorFlow never calls fsync: what a killed process wrote is safe, but when the machine itself goes
down, files of the last half minute or so may be short or empty. So training calls `write_through`
on the files of each checkpoint before `checkpoint` names it. Where that is not possible, as in
remote storage, restoring finds the damage, because every tensor has a checksum, and training falls
back to an older checkpoint.

Data that are lost, short or missing are damage. A file that cannot be read now is not, as without
permission, memory or a connection. It is read again a few times, and then the run ends.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

from estimator_det.compat import failures, tf, tf1
from estimator_det.config.files import is_remote
from estimator_det.config.printing import counted
from estimator_det.files import atomic
from model_fn.checkpoints.errors import (
    CheckpointGoneError,
    DamagedCheckpointsError,
    RunError,
    UnreadableCheckpointError,
)

_LOG = logging.getLogger(__name__)

STATE_FILE = "checkpoint"
DAMAGED_FOLDER = "damaged_checkpoints"

_PART = re.compile(r"(?P<name>.+)\.(index|meta|data-\d{5}-of-\d{5})$")
_STEP = re.compile(r"-(\d+)$")
_TEMPORARY = re.compile(
    r".*\.tempstate\d+$"
    r"|model\.ckpt-\d+_temp/?$"
    r"|(checkpoint|graph\.pbtxt|pipeline\.config|model\.ckpt-\d+\.meta)\.tmp([0-9a-f]{32})?$"
    r"|(checkpoint|pipeline\.config|data_position\.json|training_over\.json)\.tmp-\d+$"
)

RETRY_SECS = (0.5, 2.0, 5.0)  # before each further attempt to read a file
_BLOCK_BYTES = 2**22

# TensorFlow's reader raises these; most errors have lost their code.
_READER_ERRORS = (tf.errors.OpError, OSError, IndexError, RuntimeError, ValueError, MemoryError)
# Errors of reading that say nothing about what is read.
_NO_DAMAGE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    OSError,
    MemoryError,
)

Result = TypeVar("Result")


class _Damaged(NamedTuple):
    name: str
    reason: str


def checkpoint_exists(prefix: str) -> bool:
    """True if a checkpoint has an index and data, or is a single file of the older format."""
    if tf.io.gfile.exists(f"{prefix}.index"):
        return bool(tf.io.gfile.glob(f"{prefix}.data-*"))
    return bool(tf.io.gfile.exists(prefix))


@contextlib.contextmanager
def restoring(prefix: str) -> Iterator[None]:
    """Context manager for reads of a checkpoint, whose errors then say what is wrong with it.

    TensorFlow compares checksums as it restores, so a checkpoint is read once; only after an error
    it is read again, to find the cause.
    """
    try:
        yield
    except RunError:
        raise
    except _READER_ERRORS as error:
        require_whole(prefix)
        raise error


def require_whole(prefix: str) -> None:
    """Reads every tensor of a checkpoint. Errors are those of `restoring`."""
    damage = find_damage(prefix) if checkpoint_exists(prefix) else None
    if not checkpoint_exists(prefix):
        raise CheckpointGoneError(
            f"the checkpoint {prefix} was deleted before it was read. Run the same command again "
            "to use the newest one of its folder, or give another checkpoint"
        )
    if damage is not None:
        raise DamagedCheckpointsError(
            f"checkpoint {prefix} is damaged: {damage}. Copy it again, or give another one"
        )


def step_of(checkpoint: str) -> int:
    """Global step in a checkpoint; 0 if it contains none. Errors are those of `restoring`."""
    with restoring(checkpoint):
        reader = tf1.train.NewCheckpointReader(checkpoint)
        if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
            return 0
        return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))


def find_damage(prefix: str) -> Optional[str]:
    """Reason why a checkpoint is damaged; None if all tensors can be read, with their checksums.

    Reads the whole checkpoint, one tensor at a time. One of the older format is a single file.
    """
    damage = _retried(lambda: _damage_of(prefix), prefix)
    # Twice, for an error that is over by now may have had no code.
    return damage and _retried(lambda: _damage_of(prefix), prefix)


def _damage_of(prefix: str) -> Optional[str]:
    index, data = "its .index file", "its .data file"
    if tf.io.gfile.exists(prefix) and not tf.io.gfile.isdir(prefix):
        index = data = "the file"
    elif missing := _missing_part(prefix):
        return missing
    try:
        reader = tf1.train.NewCheckpointReader(prefix)
        names = sorted(reader.get_variable_to_shape_map())
    except _READER_ERRORS as error:
        _raise_unless_damage(prefix, error)
        return f"{index} cannot be read: {_short(error)}"
    for name in names:
        try:
            reader.get_tensor(name)
        except _READER_ERRORS as error:
            _raise_unless_damage(prefix, error)
            return f"{name} in {data} cannot be read: {_short(error)}"
    return None


def _raise_unless_damage(prefix: str, error: Exception) -> None:
    """Raises the error of reading, unless the content of the files is at fault.

    TensorFlow's reader gives most errors the same code, so the files are read here once more.
    """
    if isinstance(error, _NO_DAMAGE):
        raise error
    index = f"{prefix}.index" if tf.io.gfile.exists(f"{prefix}.index") else prefix
    for path in [index, *tf.io.gfile.glob(f"{prefix}.data-*")]:
        with contextlib.suppress(tf.errors.NotFoundError), tf.io.gfile.GFile(path, "rb") as file:
            while file.read(_BLOCK_BYTES):
                pass


def _retried(read: Callable[[], Result], path: str) -> Result:
    """Result of `read`, which is called again if it fails for reasons that may pass."""
    for secs in (*RETRY_SECS, None):
        try:
            return read()
        except (tf.errors.OpError, OSError, MemoryError) as error:
            text = failures.reason(error) or type(error).__name__
            if secs is None:
                raise UnreadableCheckpointError(
                    f"{path} cannot be read: {text}. It may be whole, so nothing was moved or "
                    "deleted. Check the permissions of its files, free memory and the storage, "
                    "then run the same command again"
                ) from error
            _LOG.warning("%s cannot be read: %s. Trying again in %g s", path, text, secs)
            time.sleep(secs)
    raise AssertionError


def write_through(prefix: str) -> None:
    """Has the files of a local checkpoint, and their names, written to the disk itself."""
    if is_remote(prefix):
        return
    folder = os.path.dirname(prefix) or "."
    parts = sorted(glob.glob(f"{glob.escape(prefix)}.*"))
    for path in [*parts, folder]:  # The folder last, for it holds the names.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def prepare(model_dir: str, keep_checkpoint_max: int = 5, *, verify: bool = True) -> Optional[int]:
    """Makes the newest whole checkpoint of a folder the one that training resumes from.

    For the one process that trains there, before anything restores. In order:

    * temporary files that a killed process left are deleted;
    * `checkpoint` is believed if it names a checkpoint that is whole; editing it by hand to go back
      to an older step therefore works;
    * else it is rewritten to name the newest whole checkpoint among the files, and files of damaged
      ones on the way there are moved to the folder damaged_checkpoints.

    What is done is logged, as a warning if steps are lost.

    Args:
        model_dir: It need not exist.
        keep_checkpoint_max: Number of checkpoints in a `checkpoint` file that is rewritten. Older
            ones stay; training no longer deletes them.
        verify: Read every tensor. Without it only the files are looked at: whoever restores then
            calls this again after a `DamagedCheckpointsError`.

    Returns:
        The step to resume at; None for a new run.
    """
    if not tf.io.gfile.isdir(model_dir):
        return None
    remove_temporaries(model_dir)
    find_fault = find_damage if verify else _missing_part
    listed, state_problem = _read_state(model_dir)
    elsewhere = bool(listed) and _is_elsewhere(listed[-1], model_dir)
    if elsewhere and find_fault(listed[-1]) is None:
        return step_of(listed[-1])  # Somebody made this folder continue another one.
    names = [os.path.basename(path) for path in listed]
    files = _files_by_checkpoint(model_dir)
    steps = sorted(files, key=_step_in)
    damaged: List[_Damaged] = []
    for name in [*names[-1:], *(each for each in steps[::-1] if each not in names[-1:])]:
        reason = find_fault(os.path.join(model_dir, name))
        if reason is None:
            break
        damaged.append(_Damaged(name, reason))
    else:
        _refuse_to_lose_steps(model_dir, damaged)
        _move_aside(model_dir, files, damaged)
        _delete_state(model_dir)
        return None
    step = step_of(os.path.join(model_dir, name))
    if damaged:
        _log_fallback(model_dir, name, step, damaged)
        _move_aside(model_dir, files, damaged)
    elif state_problem:
        _LOG.warning(
            "%s %s: rewritten to name %s, the newest whole checkpoint there",
            os.path.join(model_dir, STATE_FILE),
            state_problem,
            name,
        )
    if damaged or state_problem or elsewhere:
        older = steps[: steps.index(name)]
        write_state(model_dir, [*older[max(len(older) - (keep_checkpoint_max - 1), 0) :], name])
    return step


def _missing_part(prefix: str) -> Optional[str]:
    """The file that a checkpoint lacks; None if it has index and data."""
    if not tf.io.gfile.exists(f"{prefix}.index"):
        has_data = bool(tf.io.gfile.glob(f"{prefix}.data-*"))
        return "its .index file is missing" if has_data else "its files are missing"
    return None if tf.io.gfile.glob(f"{prefix}.data-*") else "its .data file is missing"


def _refuse_to_lose_steps(model_dir: str, damaged: List[_Damaged]) -> None:
    """Raises DamagedCheckpointsError if one of the damaged checkpoints is of a trained step."""
    if any(_step_in(bad.name) for bad in damaged):
        raise DamagedCheckpointsError(
            f"{model_dir}: none of its checkpoints is whole. Put a sound copy there, or choose "
            f"another model_dir; for a new run in this one, delete its file '{STATE_FILE}' and "
            f"its model.ckpt-* files\n{_reasons(damaged)}"
        )


def remove_temporaries(model_dir: str, *, log: bool = True) -> List[str]:
    """Deletes, and logs, what a killed process left half-written under temporary names."""
    removed = sorted(name for name in tf.io.gfile.listdir(model_dir) if _TEMPORARY.match(name))
    for name in removed:
        path = os.path.join(model_dir, name.rstrip("/"))
        (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)
    if removed and log:
        _LOG.info("Deleted what an earlier run left unfinished: %s", ", ".join(removed))
    return removed


def _is_elsewhere(path: str, model_dir: str) -> bool:
    folders = (os.path.dirname(path), os.path.dirname(os.path.join(model_dir, STATE_FILE)))
    if not any("://" in folder for folder in folders):
        folders = (os.path.realpath(folders[0]), os.path.realpath(folders[1]))
    return folders[0] != folders[1]


def _read_state(model_dir: str) -> Tuple[List[str], Optional[str]]:
    """Paths that `checkpoint` lists, the latest last, and what is wrong with the file."""
    path = os.path.join(model_dir, STATE_FILE)
    if not tf.io.gfile.exists(path):
        return [], "is missing" if _files_by_checkpoint(model_dir) else None
    _retried(lambda: _read(path), path)  # TensorFlow takes what it cannot read for missing.
    try:
        state = tf1.train.get_checkpoint_state(model_dir)
    except ValueError:
        state = None
    if state is None:
        return [], "is empty or cut short"
    latest = state.model_checkpoint_path
    listed = [path for path in state.all_model_checkpoint_paths if path != latest]
    return [*listed, latest], None


def _read(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        content: bytes = file.read()
    return content


def _files_by_checkpoint(model_dir: str) -> Dict[str, List[str]]:
    files: Dict[str, List[str]] = {}
    for file in tf.io.gfile.listdir(model_dir):
        match = _PART.match(file)
        if match:
            files.setdefault(match["name"], []).append(file)
    return files


def _step_in(name: str) -> int:
    match = _STEP.search(name)
    return int(match[1]) if match else 0


def modified(path: str) -> int:
    """When a file was last written, in nanoseconds; 0 where there is none."""
    try:
        return tf.io.gfile.stat(path).mtime_nsec
    except tf.errors.NotFoundError:
        return 0


def _log_fallback(model_dir: str, chosen: str, step: int, damaged: List[_Damaged]) -> None:
    lost = max(_step_in(bad.name) for bad in damaged) - step
    _LOG.warning(
        "%s: resuming at step %d from %s, %s lost, because newer ones are damaged:\n%s",
        model_dir,
        step,
        chosen,
        counted(lost, "step"),
        _reasons(damaged),
    )


def _reasons(damaged: List[_Damaged]) -> str:
    return "\n".join(f"  {bad.name}: {bad.reason}" for bad in damaged)


def _move_aside(model_dir: str, files: Dict[str, List[str]], damaged: List[_Damaged]) -> None:
    moved = [file for bad in damaged for file in files.get(bad.name, [])]
    if not moved:
        return
    aside = os.path.join(model_dir, DAMAGED_FOLDER)
    tf.io.gfile.makedirs(aside)
    for file in moved:
        tf.io.gfile.rename(os.path.join(model_dir, file), os.path.join(aside, file), overwrite=True)
    _LOG.warning("Moved to %s: %s", aside, ", ".join(sorted(moved)))


def _delete_state(model_dir: str) -> None:
    path = os.path.join(model_dir, STATE_FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def write_state(model_dir: str, names: List[str]) -> None:
    """Names are relative to the folder, so that it can be moved; replaced in one go."""
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    atomic.write(os.path.join(model_dir, STATE_FILE), "\n".join(lines) + "\n")


def _short(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    return " ".join(text.split())[:300]
