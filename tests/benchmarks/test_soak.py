from __future__ import annotations

import pathlib

import pytest

from benchmarks.soak import __main__ as program
from exporters.saved_model import export_saved_model
from tests import small_extractor
from tests.exporters.conftest import save_checkpoint, small_config

MEGABYTE = 1_000_000


def _reports(*megabytes: int) -> list:
    return [
        {"requests": n, "seconds": 1, "resident_bytes": size * MEGABYTE, "detections": 1.0}
        for n, size in enumerate(megabytes, 1)
    ]


def test_growth_leaves_the_first_third_out() -> None:
    assert program.growth(_reports(100, 500, 500, 500, 500, 500)) == 0
    assert program.growth(_reports(500, 500, 500, 500, 500, 600)) == pytest.approx(0.2)
    assert program.growth(_reports(500)) == 0


@pytest.mark.parametrize(("last", "status"), [(510, 0), (600, 1)])
def test_the_exit_status(
    last: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "serve", lambda *_: iter(_reports(500, 500, 500, last)))
    assert program.main(["exported"]) == status
    assert "growth after the first third" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_process_that_fails() -> None:
    with pytest.raises(RuntimeError, match="exit status"):
        list(program.serve("no such model", 1, 32))


@pytest.mark.exhaustive
def test_memory_of_a_server_is_flat(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_extractor.use(monkeypatch)
    config = small_config()
    checkpoint = save_checkpoint(config, str(tmp_path / "model.ckpt"))
    exported = export_saved_model(config, checkpoint, str(tmp_path / "exported"))
    reports = list(program.serve(exported.saved_model, 3000, 400))
    assert reports[-1]["requests"] == 3000 and reports[-1]["detections"] > 0
    assert program.growth(reports) < 0.03
