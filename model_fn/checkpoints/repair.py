"""Checks the checkpoints of a model_dir and repairs the folder, so that training can resume.

TensorFlow writes shards and index of model.ckpt-N to model.ckpt-N_temp under names with
`.tempstate`, renames the shards, writes the merged index in place, and at last renames a `.tmp`
file to `checkpoint`, which names the newest. A process that is killed in between leaves temporary
files, shards without an index, or a short index, and `checkpoint` names the one before.

What a killed process wrote is safe, but if the machine itself goes down, files of the last half
minute or so may be short or empty. So training calls `write_through` before `checkpoint` names a
new one. In remote storage, where that is not possible, restoring finds the damage, because every
tensor has a checksum, and training falls back to an older checkpoint.

Data that are lost, short or missing are damage. A file that cannot be read now is not, for example
without permission, memory or a connection: it is read again a few times, and then the run ends.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from typing import Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

from estimator_det.compat import failures, tf, tf1
from estimator_det.console.printing import counted
from estimator_det.errors import (
    CheckpointGoneError,
    DamagedCheckpointsError,
    RunError,
    UnreadableCheckpointError,
)
from estimator_det.files import atomic, is_remote
from model_fn.events import FAULTS_FOLDER

_LOG = logging.getLogger(__name__)

STATE_FILE = "checkpoint"
DAMAGED_FOLDER = os.path.join(FAULTS_FOLDER, "damaged_checkpoints")

_PART = re.compile(r"(?P<name>.+)\.(index|meta|data-\d{5}-of-\d{5})$")
_STEP = re.compile(r"-(\d+)$")
_TEMPORARY = re.compile(
    r".*\.tempstate\d+$"
    r"|model\.ckpt-\d+_temp/?$"
    r"|(checkpoint|graph\.pbtxt|pipeline\.config|model\.ckpt-\d+\.meta)\.tmp([0-9a-f]{32})?$"
    r"|(checkpoint|pipeline\.config|graph\.pbtxt|(data_position|data_split|training_over)\.json)"
    r"\.tmp-\d+$"
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
    """Reads every tensor of a checkpoint, inside of `restoring`."""
    damage = find_damage(prefix)
    if _missing_part(prefix):
        raise CheckpointGoneError(
            f"the checkpoint {prefix} was deleted before it was read. Run the same command again "
            "to use the newest one of its folder, or give another checkpoint"
        )
    if damage is not None:
        raise DamagedCheckpointsError(
            f"checkpoint {prefix} is damaged: {damage}. Copy it again, or give another one"
        )


def step_of(checkpoint: str) -> int:
    """Global step in a checkpoint; 0 if it contains none. Reads inside of `restoring`."""
    with restoring(checkpoint):
        reader = tf1.train.NewCheckpointReader(checkpoint)
        # The second name is the step of the TF2 line.
        for name in (tf1.GraphKeys.GLOBAL_STEP, "step/.ATTRIBUTES/VARIABLE_VALUE"):
            if reader.has_tensor(name):
                return int(reader.get_tensor(name))
        return 0


def find_damage(prefix: str) -> Optional[str]:
    """Damage of a checkpoint; None if every tensor in it can be read, with its checksum.

    Reads the whole checkpoint, one tensor at a time. The older format is a single file.
    """
    damage = _retried(lambda: _read_all(prefix), prefix)
    # Twice, because the first error may have passed by now without a code that tells it apart.
    return damage and _retried(lambda: _read_all(prefix), prefix)


def _missing_part(prefix: str) -> Optional[str]:
    """Missing file of a checkpoint; None if it has index and data, or is of the older format."""
    has_data = bool(tf.io.gfile.glob(f"{prefix}.data-*"))
    if tf.io.gfile.exists(f"{prefix}.index"):
        return None if has_data else "its .data file is missing"
    if tf.io.gfile.exists(prefix) and not tf.io.gfile.isdir(prefix):
        return None
    return "its .index file is missing" if has_data else "its files are missing"


def _read_all(prefix: str) -> Optional[str]:
    """Damage that a single reading finds."""
    missing = _missing_part(prefix)
    if missing:
        return missing
    is_single = not tf.io.gfile.exists(f"{prefix}.index")
    part = "the file" if is_single else "its .index file"
    try:
        reader = tf1.train.NewCheckpointReader(prefix)
        for name in sorted(reader.get_variable_to_shape_map()):
            part = f"{name} in {'the file' if is_single else 'its .data file'}"
            reader.get_tensor(name)
    except _READER_ERRORS as error:
        _raise_unless_damage(prefix, error)
        text = getattr(error, "message", None) or str(error)
        return f"{part} cannot be read: {' '.join(text.split())[:300]}"
    return None


def _raise_unless_damage(prefix: str, error: Exception) -> None:
    """Raises the error of reading, unless the content of the files is at fault."""
    if isinstance(error, _NO_DAMAGE):
        raise error
    # TensorFlow's reader gives most errors the same code; reading the files here has the right one.
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
    # An object store has the whole object or none.
    if is_remote(prefix):
        return
    folder = os.path.dirname(prefix) or "."
    # The folder last, because it contains the names of the files.
    for path in [*sorted(glob.glob(f"{glob.escape(prefix)}.*")), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # TensorFlow never does.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def prepare(model_dir: str, keep_checkpoint_max: int = 5, *, verify: bool = True) -> Optional[int]:
    """Lets training resume from the newest whole checkpoint of a folder.

    For the one process that trains there, before anything restores. Temporary files that a killed
    process left are deleted. `checkpoint` is believed if it names a whole checkpoint, so editing it
    by hand to go back to an older step works. Otherwise it is rewritten to name the newest whole
    one among the files, and damaged ones on the way there are moved to a folder of faults, with a
    warning that counts the lost steps.

    Args:
        keep_checkpoint_max: Number of checkpoints in a `checkpoint` file that is rewritten, 0 for
            all. Older ones stay; training no longer deletes them.
        verify: Read every tensor. Without it only the files are looked at: whoever restores then
            calls this again after a `DamagedCheckpointsError`.

    Returns the step to resume at; None for a new run.
    """
    if not tf.io.gfile.isdir(model_dir):
        return None
    if names := _remove_temporaries(model_dir):
        _LOG.info("Deleted what an earlier run left unfinished: %s", ", ".join(names))
    find_fault = find_damage if verify else _missing_part
    state_file = os.path.join(model_dir, STATE_FILE)
    listed, state_problem = _read_state(state_file)
    is_elsewhere = bool(listed) and _folder_of(listed[-1]) != _folder_of(state_file)
    if is_elsewhere and find_fault(listed[-1]) is None:
        return step_of(listed[-1])  # Somebody made this folder continue another one.
    files = _files_by_checkpoint(model_dir)
    names = sorted(files, key=_step_in)
    damage: Dict[str, str] = {}
    for name in dict.fromkeys([*map(os.path.basename, listed[-1:]), *reversed(names)]):
        fault = find_fault(os.path.join(model_dir, name))
        if fault is None:
            break
        damage[name] = fault
    else:
        if any(map(_step_in, damage)):  # one of a trained step
            raise DamagedCheckpointsError(
                f"{model_dir}: no checkpoint there is whole. Put a sound copy there, or choose "
                f"another model_dir; for a new run in this one, delete its file '{STATE_FILE}' and "
                f"its model.ckpt-* files\n{_lines(damage)}"
            )
        _move_aside(model_dir, files, damage)
        if tf.io.gfile.exists(state_file):
            tf.io.gfile.remove(state_file)
        return None
    step = step_of(os.path.join(model_dir, name))
    _log_fallback(model_dir, name, step, damage, state_problem)
    _move_aside(model_dir, files, damage)
    if damage or state_problem or is_elsewhere:
        first = max(names.index(name) + 1 - (keep_checkpoint_max or len(names)), 0)
        older = names[first : names.index(name)]
        write_state(model_dir, [*older, name])
    return step


def _log_fallback(
    model_dir: str, name: str, step: int, damage: Dict[str, str], state_problem: Optional[str]
) -> None:
    if damage:
        lost = counted(max(map(_step_in, damage)) - step, "step")
        text = "%s: resuming at step %d from %s, %s lost, because newer ones are damaged:\n%s"
        _LOG.warning(text, model_dir, step, name, lost, _lines(damage))
    elif state_problem:
        path = os.path.join(model_dir, STATE_FILE)
        text = "%s %s: rewritten to name %s, the newest whole checkpoint there"
        _LOG.warning(text, path, state_problem, name)


def _lines(damage: Dict[str, str]) -> str:
    return "\n".join(f"  {name}: {fault}" for name, fault in damage.items())


def _move_aside(model_dir: str, files: Dict[str, List[str]], damage: Dict[str, str]) -> None:
    moved = sorted(file for name in damage for file in files.get(name, []))
    if not moved:
        return
    aside = os.path.join(model_dir, DAMAGED_FOLDER)
    tf.io.gfile.makedirs(aside)
    for file in moved:
        tf.io.gfile.rename(os.path.join(model_dir, file), os.path.join(aside, file), overwrite=True)
    _LOG.warning("Moved to %s: %s", aside, ", ".join(moved))


def remove_remains(prefix: str) -> None:
    """Deletes what an attempt to save a checkpoint has left, as far as the storage allows."""
    with contextlib.suppress(tf.errors.OpError, UnreadableCheckpointError):
        _remove_temporaries(os.path.dirname(prefix))
        if find_damage(prefix) is not None:
            for path in tf.io.gfile.glob(f"{prefix}.*"):
                tf.io.gfile.remove(path)


def _remove_temporaries(model_dir: str) -> List[str]:
    """Deletes what is half-written under temporary names; returns these names."""
    names = sorted(name for name in tf.io.gfile.listdir(model_dir) if _TEMPORARY.match(name))
    for name in names:
        path = os.path.join(model_dir, name.rstrip("/"))
        (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)
    return names


def _folder_of(path: str) -> str:
    folder = os.path.dirname(path)
    return folder if is_remote(folder) else os.path.realpath(folder)


def _read_state(path: str) -> Tuple[List[str], Optional[str]]:
    """Paths that `checkpoint` lists, the latest last, and the fault of the file, if any."""
    model_dir = os.path.dirname(path)
    if not tf.io.gfile.exists(path):
        return [], "is missing" if _files_by_checkpoint(model_dir) else None
    # TensorFlow takes an unreadable file for a missing one, so this read reports the error.
    _retried(tf.io.gfile.GFile(path, "rb").read, path)
    try:
        state = tf1.train.get_checkpoint_state(model_dir)
    except ValueError:
        state = None
    if state is None:
        return [], "is empty or cut short"
    latest = state.model_checkpoint_path
    return [*(each for each in state.all_model_checkpoint_paths if each != latest), latest], None


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
    """Time at which a file was last written, in nanoseconds; 0 if it does not exist."""
    try:
        return tf.io.gfile.stat(path).mtime_nsec
    except tf.errors.NotFoundError:
        return 0


def write_state(model_dir: str, names: List[str]) -> None:
    """Replaces `checkpoint`. Names are relative to the folder, so that it can be moved."""
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    atomic.write(os.path.join(model_dir, STATE_FILE), "\n".join(lines) + "\n")
