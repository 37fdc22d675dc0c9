from __future__ import annotations

import datetime
import io
import json
import logging
import shlex
import subprocess
import sys
from typing import Iterator

import pytest

from estimator_det.console import printing
from estimator_det.errors import Problem, error, warning
from estimator_det.files.text import LONGEST_VALUE
from tests.hostile import CONTROLS, shows_as_itself


def test_escapes_can_be_read_and_text_stays():
    assert printing.escaped("a\x1bb\u202ec\n") == r"a\x1bb\u202ec\n"
    for text in ("plain text", "naïve — 猫 🐈 „x“", 'back\\slash "quotes"'):
        assert printing.escaped(text) == printing.plain(text) == text
    assert printing.escaped("\t\n", keep="\n") == "\\t\n"
    assert shows_as_itself(printing.escaped(CONTROLS))


def test_long_values_lose_their_middle():
    text = "begin" + "x" * 10**6 + "end"
    short = printing.plain(text)
    assert short.startswith("begin") and short.endswith("end")
    assert len(short) < 2 * LONGEST_VALUE and "999,808 characters more" in short
    assert printing.plain("x" * LONGEST_VALUE) == "x" * LONGEST_VALUE
    assert printing.quoted("it's\n") == repr("it's\n")


def test_a_line_that_is_reported_at_once(capfd):
    printing.report_at_once("a line", "ERROR")
    assert capfd.readouterr().err == "a line\n"
    printing.use_json()
    printing.report_at_once("a line", "ERROR")
    printing.use_json(False)
    entry = json.loads(capfd.readouterr().err)
    assert (entry["severity"], entry["message"]) == ("ERROR", "a line")


@pytest.fixture
def json_lines() -> Iterator[None]:
    printing.use_json()
    yield
    printing.use_json(False)


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("step 1/2", "INFO"),
        (error("a", "b", "c"), "ERROR"),
        (warning("a", "b", "c"), "WARNING"),
        (Problem("advice", "a", "b", "c"), "INFO"),
    ],
)
def test_reports_as_json(json_lines, text, severity):
    stream = io.StringIO()
    printing.report(text, stream)
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["severity"], entry["message"]) == (severity, str(text))
    moment = datetime.datetime.fromisoformat(entry["time"])
    assert moment.utcoffset() == datetime.timedelta(0)

    stream = io.StringIO()
    printing.report(f"{CONTROLS}\n{text}", stream, severity="CRITICAL")
    assert json.loads(stream.getvalue())["severity"] == "CRITICAL"
    assert shows_as_itself(json.loads(stream.getvalue())["message"])


def test_log_lines_as_json(json_lines):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(printing.LogFormatter("%(message)s"))
    logger = logging.Logger("of this test")
    logger.addHandler(handler)
    logger.warning("read %s", CONTROLS * 10**4)
    try:
        raise RuntimeError("why")
    except RuntimeError:
        logger.exception("what")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["severity"] == "WARNING" and first["message"].startswith("read a\\x1b")
    assert shows_as_itself(first["message"])
    assert second["severity"] == "ERROR"
    assert second["message"].startswith("what\nTraceback") and "why" in second["message"]


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2</dev/null"])
def test_closed_streams_take_messages(closed, tmp_path):
    script = (
        "import sys\n"
        "from estimator_det.console import printing\n"
        "printing.open_closed_streams()\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "    printing.report('lost', sys.stderr)\n"
        "    printing.report('lost')\n"
        "    sys.stdin.read()\n"
        "    file.write('whole')\n"
    )
    command = shlex.join([sys.executable, "-c", script])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "whole"
