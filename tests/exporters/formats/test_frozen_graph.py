import os
import pathlib
from typing import Any

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from exporters.formats.frozen_graph import GraphDetector, load_frozen_graph
from exporters.saved_model import FROZEN_GRAPH_FILE
from model_fn.checkpoints.errors import RunError


def test_damaged_files(exported: pathlib.Path, tmp_path: pathlib.Path) -> None:
    content = (exported / FROZEN_GRAPH_FILE).read_bytes()
    path = tmp_path / "cut.pb"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"cut off after .*Get the file again, or export it again$"):
        load_frozen_graph(str(path))


def _graph(*outputs: str, shape: Any = (None, None, None, 3), dtype: Any = tf.uint8) -> Any:
    with tf.Graph().as_default() as graph:
        tf1.placeholder(dtype, shape, name="image_tensor")
        for name in outputs:
            tf.zeros([1], name=name)
        return graph.as_graph_def()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: _graph("detection_boxes"), "no tensor detection_classes"),
        (lambda: _graph(shape=(2, 8, 8, 3)), "batches of 2 images only"),
        (lambda: _graph(shape=(None, 8, 8, 4)), "images of 4 channels"),
        (lambda: _graph(dtype=tf.int64), "takes images only: its inputs are .'image_tensor'"),
    ],
)
def test_graphs_that_are_no_detector(graph: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        GraphDetector("graph.pb", graph())


def test_graphs_with_variables_or_unknown_operations() -> None:
    with tf.Graph().as_default() as graph:
        tf1.get_variable("weights", [1], use_resource=True)
    with pytest.raises(RunError, match="1 variable, such as weights"):
        GraphDetector("graph.pb", graph.as_graph_def())
    unknown = tf1.GraphDef()
    unknown.node.add(name="x", op="NoSuchOperation")
    with pytest.raises(RunError, match="NoSuchOperation"):
        GraphDetector("graph.pb", unknown)


LINES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"W0000 00:00:1.2 3 op_level_cost_estimator.cc:699] Error in PredictCost() for the op: x\n"
    b"a warning that stays\n"
)


def test_messages_of_cost_estimation_are_hidden_in_the_first_run(
    exported: pathlib.Path,
    pictures: np.ndarray,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Native code writes them when a graph is optimized, past all settings of logging."""
    model = load_frozen_graph(str(exported / FROZEN_GRAPH_FILE))
    run = model._session.run

    def noisy(*arguments: Any) -> Any:
        os.write(2, LINES)
        return run(*arguments)

    monkeypatch.setattr(model._session, "run", noisy)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    model.run(pictures)
    assert capfd.readouterr().err == "a warning that stays\n"
    model.run(pictures)
    assert capfd.readouterr().err == LINES.decode(), "nothing is buffered later"
