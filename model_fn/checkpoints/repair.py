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
remote storage, the check below finds the damage, for every tensor has a checksum, and falls back to
an older checkpoint.

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
from estimator_det.files import atomic
from model_fn.checkpoints.errors import (
    CheckpointGoneError,
    DamagedCheckpointsError,
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
_FOOTER_BYTES = 48  # of an index: where its last two blocks are, and a mark; without a checksum
_BLOCK_END_BYTES = 5  # type and checksum

# What TensorFlow's reader raises; most of it has lost its code.
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


def is_there(prefix: str) -> bool:
    """Whether a checkpoint has an index and data, or is a single file of the older format."""
    if tf.io.gfile.exists(f"{prefix}.index"):
        return bool(tf.io.gfile.glob(f"{prefix}.data-*"))
    return bool(tf.io.gfile.exists(prefix))


@contextlib.contextmanager
def gone_explained(prefix: str) -> Iterator[None]:
    """Within, an error of reading a checkpoint that is no longer there says so.

    Raises:
        CheckpointGoneError: in place of the errors that TensorFlow raises for it.
    """
    try:
        yield
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        if is_there(prefix):
            raise
        raise CheckpointGoneError(
            f"the checkpoint {prefix} was deleted before it was read. Run the same command again "
            "to use the newest one of its folder, or give another checkpoint"
        ) from error


def step_of(checkpoint: str) -> int:
    """The global step in a checkpoint; 0 where it holds none.

    Raises:
        CheckpointGoneError: if it does not exist.
    """
    with gone_explained(checkpoint):
        reader = tf1.train.NewCheckpointReader(checkpoint)
        if not reader.has_tensor(tf1.GraphKeys.GLOBAL_STEP):
            return 0
        return int(reader.get_tensor(tf1.GraphKeys.GLOBAL_STEP))


def find_damage(prefix: str) -> Optional[str]:
    """What is wrong with a checkpoint; None if every tensor in it can be read, with its checksum.

    Reads the whole checkpoint, one tensor at a time. One of the older format is a single file.

    Raises:
        UnreadableCheckpointError: if its files cannot be read now, so that nobody knows.
    """
    damage = _retried(lambda: _damage_of(prefix), prefix)
    # Twice, for an error that is over by now may have had no code.
    return damage and _retried(lambda: _damage_of(prefix), prefix)


def _damage_of(prefix: str) -> Optional[str]:
    index, data = "its .index file", "its .data file"
    if not tf.io.gfile.exists(prefix + ".index"):
        if not tf.io.gfile.exists(prefix):
            return "its .index file is missing"
        index = data = "the file"
    elif not tf.io.gfile.glob(prefix + ".data-*"):
        return "its .data file is missing"
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
    is_single = not tf.io.gfile.exists(f"{prefix}.index")
    index = prefix if is_single else f"{prefix}.index"
    if isinstance(error, MemoryError) and not _has_possible_lengths(index):
        return  # A damaged length asks for more memory than there is.
    if isinstance(error, _NO_DAMAGE):
        raise error
    for path in [index, *tf.io.gfile.glob(f"{prefix}.data-*")]:
        with contextlib.suppress(tf.errors.NotFoundError), tf.io.gfile.GFile(path, "rb") as file:
            while file.read(_BLOCK_BYTES):
                pass


def _has_possible_lengths(index: str) -> bool:
    """True if the blocks that the end of an index names are within the file."""
    with tf.io.gfile.GFile(index, "rb") as file:
        size = file.size()
        file.seek(max(size - _FOOTER_BYTES, 0))
        footer = file.read(_FOOTER_BYTES)
    numbers, shift = [0], 0
    for byte in footer:
        numbers[-1] |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(0)
            shift = 0
    # Offset and size of one block, then of the other.
    ends = [sum(numbers[i : i + 2]) + _BLOCK_END_BYTES for i in (0, 2)]
    return size >= _FOOTER_BYTES and max(ends) <= size - _FOOTER_BYTES


def _retried(read: Callable[[], Result], path: str) -> Result:
    """Result of `read`, which is called again if it fails for reasons that may pass.

    Raises:
        UnreadableCheckpointError: if it still cannot.
    """
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
    """Has the files of a local checkpoint, and their names, written to the disk itself.

    Raises:
        OSError: if the disk does not take them.
    """
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


def prepare(model_dir: str, keep_checkpoint_max: int = 5) -> Optional[int]:
    """Makes the newest whole checkpoint of a folder the one that training resumes from.

    To be called by the one process that trains there, before anything restores. In order:

    * temporary files that a killed process left are deleted;
    * `checkpoint` is believed if it names a whole checkpoint, unless a whole one was written after
      it, which is then newer; editing it by hand to go back to an older step therefore works;
    * where it is missing, cut short, or names what is missing or damaged, it is rewritten to name
      the newest whole checkpoint among the files;
    * files of damaged checkpoints newer than that one, and parts without an index, are moved to
      the folder damaged_checkpoints.

    Whatever is done is logged, as a warning where steps are lost.

    Args:
        model_dir: The folder; it need not exist.
        keep_checkpoint_max: So many checkpoints enter a `checkpoint` file that is rewritten.
            Older ones stay, and are not deleted by training any more.

    Returns:
        The step to resume at; None for a new run.

    Raises:
        DamagedCheckpointsError: if there are checkpoints of trained steps, none of them whole.
        UnreadableCheckpointError: if a file cannot be read now.
    """
    if not tf.io.gfile.isdir(model_dir):
        return None
    remove_temporaries(model_dir)
    listed, state_problem = _read_state(model_dir)
    elsewhere = bool(listed) and _is_elsewhere(listed[-1], model_dir)
    if elsewhere and find_damage(listed[-1]) is None:
        return step_of(listed[-1])  # Somebody made this folder continue another one.
    names = [os.path.basename(path) for path in listed]
    parts = _parts(model_dir)
    chosen, damaged = _choose(model_dir, parts, names)
    orphans = _without_index(parts)
    if chosen is None:
        _refuse_to_lose_steps(model_dir, damaged)
        _move_aside(model_dir, parts, [*damaged, *orphans])
        if state_problem or names:
            _delete_state(model_dir)
        return None
    step = step_of(os.path.join(model_dir, chosen))
    if damaged:
        _log_fallback(model_dir, chosen, step, damaged)
    _move_aside(model_dir, parts, [*damaged, *orphans])
    if state_problem:
        _LOG.warning(
            "%s %s: rewritten to name %s, the newest whole checkpoint there",
            os.path.join(model_dir, STATE_FILE),
            state_problem,
            chosen,
        )
    if state_problem or elsewhere or names[-1] != chosen:
        moved = {bad.name for bad in [*damaged, *orphans]}
        present = [name for name in _by_step(parts) if name not in moved]
        older = _older(chosen, names, present, keep_checkpoint_max)
        write_state(model_dir, [*older, chosen])
    return step


def _older(chosen: str, listed: List[str], present: List[str], keep: int) -> List[str]:
    """What is named before `chosen`: those listed that are still there, else the last ones."""
    older = [name for name in listed if name in present and name != chosen]
    if older:
        return older
    older = present[: present.index(chosen)]
    return older[max(len(older) - (keep - 1), 0) :]


def _without_index(parts: Dict[str, List[str]]) -> List[_Damaged]:
    return [
        _Damaged(name, "its .index file is missing")
        for name, files in parts.items()
        if any(".data-" in file for file in files) and f"{name}.index" not in files
    ]


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
        return [], "is missing" if _parts(model_dir) else None
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


def _parts(model_dir: str) -> Dict[str, List[str]]:
    """Files of each checkpoint in a folder, by its name."""
    parts: Dict[str, List[str]] = {}
    for file in tf.io.gfile.listdir(model_dir):
        match = _PART.match(file)
        if match:
            parts.setdefault(match["name"], []).append(file)
    return parts


def _step_in(name: str) -> int:
    match = _STEP.search(name)
    return int(match[1]) if match else 0


def _by_step(parts: Dict[str, List[str]]) -> List[str]:
    """Names of checkpoints with an index, of the oldest step first."""
    complete = [
        name for name, files in parts.items() if any(file.endswith(".index") for file in files)
    ]
    return sorted(complete, key=_step_in)


def _choose(
    model_dir: str, parts: Dict[str, List[str]], names: List[str]
) -> Tuple[Optional[str], List[_Damaged]]:
    """The name to resume from, and what was found damaged on the way there."""
    damaged: List[_Damaged] = []
    for name in _candidates(model_dir, parts, names):
        if name not in parts:
            damaged.append(_Damaged(name, "its files are missing"))
            continue
        reason = find_damage(os.path.join(model_dir, name))
        if reason is None:
            return name, damaged
        damaged.append(_Damaged(name, reason))
    return None, damaged


def _candidates(model_dir: str, parts: Dict[str, List[str]], names: List[str]) -> List[str]:
    """Names in the order in which they are to be tried."""
    newest_first = _by_step(parts)[::-1]
    if not names:
        return newest_first
    latest = names[-1]
    state_time = modified(os.path.join(model_dir, STATE_FILE))
    later = [
        name
        for name in newest_first
        if name not in names
        and _step_in(name) > _step_in(latest)
        and modified(os.path.join(model_dir, f"{name}.index")) > state_time
    ]
    before = [name for name in newest_first if _step_in(name) < _step_in(latest)]
    return [*later, latest, *before]


def modified(path: str) -> int:
    """When a file was last written, in nanoseconds; 0 where there is none."""
    try:
        return tf.io.gfile.stat(path).mtime_nsec
    except tf.errors.NotFoundError:
        return 0


def _log_fallback(model_dir: str, chosen: str, step: int, damaged: List[_Damaged]) -> None:
    lost = max(_step_in(bad.name) for bad in damaged) - step
    _LOG.warning(
        "%s: resuming at step %d from %s, %d steps lost, for what is newer is damaged:\n%s",
        model_dir,
        step,
        chosen,
        lost,
        _reasons(damaged),
    )


def _reasons(damaged: List[_Damaged]) -> str:
    return "\n".join(f"  {bad.name}: {bad.reason}" for bad in damaged)


def _move_aside(model_dir: str, parts: Dict[str, List[str]], damaged: List[_Damaged]) -> None:
    moved = [file for bad in damaged for file in parts.get(bad.name, [])]
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
