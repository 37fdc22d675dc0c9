"""`estimator-det sync` on a bucket of an emulator."""

import json
import pathlib

import pytest

from estimator_det.files import ownership
from estimator_det.programs import cli
from estimator_det.programs.cloud import storage
from tests.cloud.test_storage import names_in


def test_up_and_down(emulator, tmp_path, monkeypatch, capsys):
    for name in ("a.record", "b.record"):
        (tmp_path / name).write_bytes(name.encode())
    assert cli.main(["sync", str(tmp_path), "gs://data/x", "--exclude", "b.*"]) == 0
    assert capsys.readouterr().out == "copied to gs://data/x: 1 (0.0 MB); already there: 0\n"
    assert cli.main(["sync", str(tmp_path), "gs://data/x", "--threads=1", "--json"]) == 0
    result = {"destination": "gs://data/x", "files": 1, "size": 8, "same": 1}
    assert json.loads(capsys.readouterr().out) == result
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sync", "gs://data/x/a*", "gs://data/x/b.record", "down"]) == 0
    assert names_in(pathlib.Path("down")) == ["a.record", "b.record"]


def test_files_that_no_download_wrote_stay(emulator, tmp_path, capsys):
    (tmp_path / "a.record").write_bytes(b"a")
    assert cli.main(["sync", str(tmp_path), "gs://data/x"]) == 0
    target = tmp_path / "down"
    target.mkdir()
    (target / "a.record").write_bytes(b"mine")
    assert cli.main(["sync", "gs://data/x", str(target)]) == 2
    assert f"{target}/a.record exists, and sync is not known" in capsys.readouterr().err
    (target / ownership.marker("sync")).touch()
    assert cli.main(["sync", "gs://data/x", str(target)]) == 0
    assert (target / "a.record").read_bytes() == b"a"


def test_follow(emulator, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(storage, "follow", lambda *args, **named: calls.append((args, named)) or 7)
    assert cli.main(["sync", "gs://data/x", "run", "--follow", "--timeout_secs=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"destination": "run", "files": 7}
    ((sources, folder), named) = calls[0]
    assert (sources, folder) == (["gs://data/x"], "run")
    assert (named["interval_secs"], named["timeout_secs"]) == (30.0, 5.0)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a"], 2, "give one source or more, and a destination"),
        (["a", "b"], 2, "give local sources and a gs://"),
        (["gs://data/x", "b", "--threads=0"], 2, "argument --threads: '0' is not"),
        (["gs://data/x", "b", "--timeout_secs=5"], 2, "--timeout_secs requires --follow"),
        (["gs://data/x", "b", "--follow", "--interval_secs=0"], 2, "--interval_secs: '0' is not"),
        (["b", "gs://data/x", "--follow"], 2, "--follow is for downloads"),
        (["gs://data/x", __file__], 2, "is a file; give a folder as the destination"),
        (["none", "gs://data/x"], 3, "none: no such file or folder"),
        (["gs://data/x", "b"], 3, "gs://data/x: no such file or folder"),
    ],
)
def test_errors(emulator, capsys, arguments, code, message):
    assert cli.main(["sync", *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error
