"""The conformance command passes where numbers agree, and fails where one was altered."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Dict, List, NamedTuple

import numpy as np
import pytest

from benchmarks.conformance import goldens
from benchmarks.conformance.compare import Check
from tests.conftest import MODELS
from tests.programs.forking import TIMEOUT, Forker

LIGHT = "ssdlite_mobilenet_v1_coco"
ALTERED = "ssd_mobilenet_v1_pets"
CLASSES = "class_predictions_with_background"


def test_all_golden_numbers_can_be_read():
    read = [(each, name) for each in goldens.FOLDERS for name in goldens.names(each, "*")]
    reasons = {case: goldens.read(*case).why_without_numbers for case in read}
    (case,) = [case for case, reason in reasons.items() if reason]
    assert case[1] == "ssd_mobilenet_v2_pets_keras" and "tf version 1" in reasons[case]


def test_check_keeps_the_worst_and_its_place():
    check = Check()
    check.close([1.0, 2.0], [1.0, 2.0], 1e-6, "equal")
    assert check.ok and str(check) == "ok 0e+00"
    check.close([1.0, 2.2], [1.0, 2.0], 1e-3, "near")
    check.close([1.0, 4.0], [1.0, 2.0], 1e-3, "far")
    assert not check.ok
    assert str(check) == "rel 1.0e+00 at far"


def test_check_fails_on_nan_shape_and_nothing_compared():
    for actual in ([np.nan], [1.0, 2.0]):
        check = Check()
        check.close(actual, [1.0], 1e-3, "value")
        assert not check.ok
    assert not Check().ok
    check = Check()
    check.error_above_noise(0.1, 0.2, np.array([1.0, -1.0]), "decided")
    assert str(check) == "ok 1e-01"
    check.error_above_noise(9.0, 2.0, np.array([1.0, -1.0]), "noisy")
    assert str(check) == "ok 1e-01, undecided: noisy" and check.compared == 1


def test_sums_count_against_the_sum_of_magnitudes():
    recorded = {"shape": [2], "sum": 0.0, "abs_sum": 2000.0}
    check = Check()
    check.statistics(np.array([1000.5, -1000.0]), recorded, 1e-3, "tensor")
    assert check.ok


class Table(NamedTuple):
    """What a run of the command printed."""

    rows: Dict[str, Dict[str, str]]  # cells by configuration and column
    last_line: str
    exit_code: int


def _parse_table(printed: str, exit_code: int) -> Table:
    header, *lines, last = printed.splitlines()
    columns = header.split(" | ")[1:]
    cells: List[List[str]] = [line.split(" | ") for line in lines]
    return Table({row[0]: dict(zip(columns, row[1:])) for row in cells}, last, exit_code)


def _alter(folder: pathlib.Path) -> None:
    """Alters a shape, class predictions, a loss and a gradient norm in the records of ALTERED."""
    graph = folder / "configs" / f"{ALTERED}.json"
    record = json.loads(graph.read_text())
    record["variables"]["FeatureExtractor/MobilenetV1/Conv2d_0/weights"][0][3] += 1
    graph.write_text(json.dumps(record))
    numbers = folder / "numeric" / f"{ALTERED}.json"
    record = json.loads(numbers.read_text())
    record["predictions"][CLASSES]["abs_sum"] *= 1.05
    record["train"]["losses"]["Loss/localization_loss"] *= 1.05
    record["train"]["grad_norms"]["BoxPredictor_0/ClassPredictor/weights"] *= 1.05
    numbers.write_text(json.dumps(record))


@pytest.fixture(scope="module")
def table(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """One run for all tests; without training traces, which take long."""
    folder = tmp_path_factory.mktemp("golden")
    files = ["numeric/_inputs.npz"]
    files += [f"configs/{name}.json" for name in (LIGHT, ALTERED)]
    files += [f"numeric/{name}.{end}" for name in (LIGHT, ALTERED) for end in ("json", "npz")]
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(MODELS / file, folder / file)
    _alter(folder)
    # A process of its own, because TensorFlow reads the number of threads once.
    arguments = ["--threads=1", f"--configs={MODELS / 'pipelines'}", f"--golden={folder}"]
    printed = folder / "printed"
    run = forker.program(
        "import contextlib, sys\n"
        "from benchmarks.conformance.__main__ import main\n"
        "import pytest\n"
        "from tests.conftest import MODELS, quicken\n"
        "quicken(pytest.MonkeyPatch())\n"
        f"with open({str(printed)!r}, 'w') as out, contextlib.redirect_stdout(out):\n"
        f"    code = main({arguments!r})\n"
        "sys.exit(code)"
    )
    code = run.wait(3 * TIMEOUT)
    assert printed.exists() and printed.read_text(), run.output()
    return _parse_table(printed.read_text(), code)


@pytest.mark.slow
def test_numbers_of_the_object_detection_api(table):
    cells = table.rows[LIGHT]
    for column in ("variables", "predictions", "losses", "gradients", "detections"):
        assert cells[column].startswith("ok"), (column, cells[column])


@pytest.mark.slow
def test_altered_numbers_are_found(table):
    cells = table.rows[ALTERED]
    assert "Conv2d_0/weights" in cells["variables"]
    assert "Loss/localization_loss" in cells["losses"]
    assert "BoxPredictor_0/ClassPredictor/weights" in cells["gradients"]
    assert CLASSES in cells["predictions"]
    for column in ("anchors", "detections"):
        assert cells[column].startswith("ok "), (column, cells[column])
    assert table.last_line == "1 of 2 configurations hold"
    assert table.exit_code == 1
