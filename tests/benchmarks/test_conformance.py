"""The conformance command passes where numbers agree, and fails where one was altered."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Dict, List, NamedTuple

import pytest

from tests.conftest import MODELS
from tests.programs.forking import TIMEOUT, Forker

LIGHT = "ssdlite_mobilenet_v1_coco"
ALTERED = "ssd_mobilenet_v1_pets"
CLASSES = "class_predictions_with_background"


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
    files = ["detinit.py", "numeric/_inputs.npz"]
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
def test_numbers_of_the_reference(table):
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
