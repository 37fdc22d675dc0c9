from typing import Any

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import RunError
from exporters.formats.frozen_graph import FROZEN_GRAPH_FILE, FrozenGraph, GraphDetector


def _graph(*outputs: str, shape: Any = (None, None, None, 3), dtype: Any = tf.uint8) -> Any:
    with tf.Graph().as_default() as graph:
        tf1.placeholder(dtype, shape, name="image_tensor")
        for name in outputs:
            tf.zeros([1], name=name)
        return graph.as_graph_def()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            lambda: _graph("detection_boxes"),
            "it has the inputs .* and the outputs .'detection_boxes'., and a detector",
        ),
        (lambda: _graph(shape=(2, 8, 8, 3)), "batches of 2 images only"),
        (lambda: _graph(shape=(None, 8, 8, 4)), "images of 4 channels"),
        (lambda: _graph(dtype=tf.int64), "takes images only: its inputs are .'image_tensor'"),
    ],
)
def test_graphs_that_are_no_detector(graph, message):
    with pytest.raises(RunError, match=message):
        GraphDetector("graph.pb", graph())


def test_graphs_with_variables_or_unknown_operations(tmp_path):
    with tf.Graph().as_default() as graph:
        tf1.get_variable("weights", [1], use_resource=True)
    (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(RunError, match="1 variable, such as weights"):
        FrozenGraph().load(str(tmp_path / "graph.pb"))
    unknown = tf1.GraphDef()
    unknown.node.add(name="x", op="NoSuchOperation")
    with pytest.raises(RunError, match="NoSuchOperation"):
        GraphDetector("graph.pb", unknown)


def test_a_frozen_graph_runs_with_folded_batch_norm(exported, monkeypatch):
    graphs, session = [], tf1.Session
    monkeypatch.setattr(tf1, "Session", lambda graph: graphs.append(graph) or session(graph=graph))
    FrozenGraph().load(str(exported / FROZEN_GRAPH_FILE))
    (graph,) = graphs
    assert "FusedBatchNormV3" not in {node.type for node in graph.get_operations()}
