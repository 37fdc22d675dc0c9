"""Signals, full and read-only folders, damaged checkpoints and second trainers, with processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
from typing import Any, Iterator

import pytest

from estimator_det.files import lock
from estimator_det.programs import console
from model_fn.checkpoints import repair
from tests.checkpoints import trained_steps
from tests.programs.clusters import check_whole
from tests.programs.forking import EVALUATION_BEGINS, Run, small_config

pytestmark = pytest.mark.slow

BALLAST = 2**20  # 4 MB in each checkpoint
CHECKPOINT_BYTES = 4 * BALLAST


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_config(tmp_path_factory.mktemp("small"), num_steps=5000)


def _no_traceback(run: Run) -> str:
    output = run.output()
    assert "Traceback" not in output, output
    return output


def _completed(forker: Any, folder: pathlib.Path, **settings: Any) -> Run:
    """A training that has ended well."""
    run = forker.fake_training(str(folder), **settings)
    assert run.wait() == 0, run.output()
    return run


@contextlib.contextmanager
def _tmpfs(folder: pathlib.Path, megabytes: int) -> Iterator[None]:
    """A small file system; skips the test where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting needs rights that this user lacks")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_sigterm_saves_and_the_command_goes_on(forker, config, tmp_path):
    folder = tmp_path / "model"
    arguments = ["train", "--pipeline_config_path", config, "--model_dir", str(folder)]
    arguments += ["--progress_steps=1", "--seed=1"]
    run = forker.command(*arguments)
    run.wait_for("step 2/")
    assert (folder / lock.LOCK_FILE).exists()

    # Evaluation may run beside it, a second trainer may not. Stopped, it leaves them the processor.
    run.signal(signal.SIGSTOP)
    beside = forker.command("evaluate", "--checkpoint_dir", str(folder))
    second = forker.command(*arguments)
    assert second.wait() == console.EXIT_IN_USE
    holder = rf"process {run.pid} on {socket.gethostname()}, since \d[^,]+, trains in {folder}\."
    assert re.search(holder, _no_traceback(second)), second.output()
    assert beside.wait() == 0, beside.output()
    run.signal(signal.SIGCONT)
    assert run.poll() is None

    run.signal(signal.SIGTERM)
    assert run.wait() == console.EXIT_TERMINATED, run.output()
    assert "SIGTERM: finishing this step and saving a checkpoint" in _no_traceback(run)
    step = trained_steps(str(folder))
    assert step >= 2
    assert f"stopped by SIGTERM at step {step}, which is saved in {folder}" in run.output()
    assert f"step {step + 1}/" not in run.output()
    assert not (folder / lock.LOCK_FILE).exists()

    saved = (folder / f"model.ckpt-{step}.index").stat().st_mtime_ns
    again = forker.command(*arguments)
    again.wait_for(f"step {step + 1}/")
    again.signal(signal.SIGKILL)
    assert again.wait() == -signal.SIGKILL
    assert f"Resuming at step {step}" in again.output()
    # What training resumed from was not written again.
    assert (folder / f"model.ckpt-{step}.index").stat().st_mtime_ns == saved


def test_sigterm_while_the_graph_is_built(forker, config, tmp_path):
    folder = tmp_path / "model"
    arguments = ["--pipeline_config_path", config, "--model_dir", str(folder)]
    run = forker.command("train", *arguments, "--num_train_steps", "0")
    run.wait_for("Training never ends")  # just before
    run.signal(signal.SIGTERM)
    assert run.wait() == console.EXIT_TERMINATED, run.output()
    assert "stopped by SIGTERM before training began" in _no_traceback(run)
    assert not list(folder.glob("model.ckpt*"))


def test_sigterm_leaves_an_evaluation(forker, tmp_path):
    folder = tmp_path / "model"
    run = forker.fake_training(
        str(folder), num_steps=100, eval_secs=0, eval_batches=10**7, ballast=1
    )
    run.wait_for(EVALUATION_BEGINS)
    assert "step 3/" not in run.output()  # The evaluation would take a day.
    run.signal(signal.SIGTERM)
    assert run.wait() == console.EXIT_TERMINATED, run.output()
    assert "stopped by SIGTERM at step 2" in _no_traceback(run)
    assert trained_steps(str(folder)) == 2


def test_second_signal_ends_at_once(forker, tmp_path):
    folder = tmp_path / "model"
    run = forker.fake_training(str(folder), num_steps=100, step_secs=3600, ballast=1)
    run.wait_for("step 1/100")
    run.signal(signal.SIGTERM)
    run.wait_for("once more stops at once")
    while run.poll() is None:  # At first it is the same signal again.
        run.signal(signal.SIGTERM)
    assert run.wait() == console.EXIT_TERMINATED
    assert "SIGTERM again: stopped at once" in _no_traceback(run)
    assert trained_steps(folder) == 0
    _completed(forker, folder, num_steps=2, ballast=1)


def test_full_disk(forker, tmp_path):
    with _tmpfs(tmp_path / "small", 11):
        folder = tmp_path / "small" / "model"
        settings = {"num_steps": 20, "eval_secs": 100, "ballast": BALLAST}
        run = forker.fake_training(str(folder), **settings)
        assert run.wait() == console.EXIT_NOT_WRITABLE, run.output()
        (line,) = [line for line in _no_traceback(run).splitlines() if line.startswith("error")]
        assert f"model.ckpt-4 could not be written to {folder}: no space left on device" in line
        assert "of 11.5 MB free" in line and "of step 2, which is intact" in line
        assert repair.find_damage(str(folder / "model.ckpt-2")) is None
        assert not list(folder.glob("*4*.data*")) + list(folder.glob("*_temp"))

        # With more room it goes on. Without any, nothing is started, nor lost.
        fill = folder / "fill"
        with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        run = forker.fake_training(str(folder), **settings)
        assert run.wait() == console.EXIT_NOT_WRITABLE
        assert "model_dir cannot be written to: no space left" in _no_traceback(run)
        fill.unlink()
        remount = ["mount", "-o", "remount,size=64m", str(tmp_path / "small")]
        subprocess.run(remount, check=True)
        run = _completed(forker, folder, **settings)
        assert "Resuming at step 2" in run.output() and trained_steps(str(folder)) == 20


def test_limit_of_file_size(forker, tmp_path):
    """As a quota does; needs no rights, unlike a file system of its own."""
    folder = tmp_path / "model"
    _completed(forker, folder, num_steps=2, ballast=BALLAST)
    limit = CHECKPOINT_BYTES // 2
    run = forker.fake_training(str(folder), limit, num_steps=4, ballast=BALLAST)
    assert run.wait() == console.EXIT_NOT_WRITABLE, run.output()
    output = _no_traceback(run)
    assert f"model.ckpt-4 could not be written to {folder}: file too large" in output
    assert trained_steps(str(folder)) == 2
    check_whole(folder)
    _completed(forker, folder, num_steps=4, ballast=BALLAST)


def test_read_only_folder(forker, config, tmp_path):
    arguments = ["train", "--pipeline_config_path", config, "--model_dir"]
    with _tmpfs(tmp_path / "small", 64):
        folder = tmp_path / "small" / "model"
        _completed(forker, folder, num_steps=2, ballast=1)
        files = sorted(os.listdir(folder))
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        run = forker.command(*arguments, str(folder))
        assert run.wait() == console.EXIT_NOT_WRITABLE
        line = _no_traceback(run).splitlines()[-1]
        assert line.startswith("error: model_dir cannot be written to: read-only file system")
        assert str(folder) in line and "MB free" not in line  # as space is not what is missing
        assert sorted(os.listdir(folder)) == files
        assert repair.find_damage(str(folder / "model.ckpt-2")) is None
