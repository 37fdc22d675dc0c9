"""Fixtures shared by all tests."""

from __future__ import annotations

import collections
import gc
import json
import os
import pathlib
from typing import Any, Dict, Iterator, List, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Several processes share the cores. Two threads that share the small operations of tests switch so
# often that a session takes four times the processor time of one thread.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import pytest
from tensorflow.python.util import tf_stack

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11; pytest brings it
    import tomli as tomllib

from estimator_det.compat import tf, tf1, versions
from tests.reruns import pytest_sessionstart, pytest_terminal_summary  # noqa: F401 (hooks)

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
MODELS = TESTS / "golden" / "models"  # numbers of whole models, see benchmarks.conformance
EXHAUSTIVE_SECS = 3600
estimator_servers = pytest.mark.skipif(
    versions.release(tf.__version__) >= versions.WITHOUT_ESTIMATOR,
    reason="parameter servers of an Estimator need TensorFlow 2.15",
)
PYPROJECT: Dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: Dict[str, Any] = PYPROJECT["project"]

# What `quicken` replaces.
ORIGINALS = tuple(
    (target, name, getattr(target, name))
    for target, name in (
        (tf1.Session, "__init__"),
        (tf.data, "Options"),
        (tf_stack, "extract_stack"),
    )
)


def golden_component(name: str) -> Tuple[Dict[str, Any], Dict[str, np.ndarray]]:
    """Settings and arrays measured on the Object Detection API, from tests/golden/components."""
    folder = TESTS / "golden" / "components"
    document = json.loads((folder / f"{name}.json").read_text())
    with np.load(folder / f"{name}.npz") as arrays:
        return document["settings"], {key: arrays[key] for key in arrays.files}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """In parallel runs, the files with most slow tests first: all processes then end together.

    Exhaustive tests have more time than `timeout` in pyproject.toml. Tests of real data, which have
    it in their names, run only if the variable REAL_DATA is its folder.
    """
    if "REAL_DATA" not in os.environ:
        wanted = [item for item in items if "real_data" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
    for item in items:
        if item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(EXHAUSTIVE_SECS))
    if not hasattr(config, "workerinput"):
        return
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """If the variable NO_SKIPS is set, a skipped test fails, as for lack of a package."""
    report = yield
    if report.skipped and "NO_SKIPS" in os.environ:
        report.outcome, report.longrepr = "failed", f"{report.longrepr[2]}, with NO_SKIPS"
    return report


def pytest_collection_finish() -> None:
    """Skips imported objects in garbage collections, which are also rarer: saves 4% of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def quick_sessions() -> Iterator[None]:
    """Graphs are not optimized, except in tests marked `optimized` and in new processes."""
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(autouse=True)
def optimized_graphs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restores TensorFlow's usual optimization for a test that is marked `optimized`."""
    if request.node.get_closest_marker("optimized") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for target, name, value in ORIGINALS:
            patch.setattr(target, name, value)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
        yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Turns off graph optimization: most graphs run once or twice, in less time than Grappler.

    Input pipelines are not rewritten either, and graphs are built faster. The error of an operation
    does not name the line that built it: mark the test `optimized` to see it.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    make, make_options = tf1.Session.__init__, tf.data.Options

    def make_quick(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        quick = tf1.ConfigProto()
        quick.CopyFrom(config or tf1.ConfigProto())
        quick.graph_options.rewrite_options.disable_meta_optimizer = True
        make(self, target, graph, quick)

    def make_quick_options() -> tf.data.Options:
        options = make_options()
        options.experimental_optimization.apply_default_optimizations = False
        return options

    patch.setattr(tf1.Session, "__init__", make_quick)
    patch.setattr(tf.data, "Options", make_quick_options)
    # The stack of each operation takes a tenth of the time to build a graph.
    stack = tf_stack.extract_stack()
    patch.setattr(tf_stack, "extract_stack", lambda stacklevel=1: stack)


@pytest.fixture(scope="module")
def small_network() -> Iterator[None]:
    """Every SSD has the network of tests/small_extractor.py until the module ends."""
    from tests import small_extractor

    with pytest.MonkeyPatch.context() as patch:
        small_extractor.use(patch)
        yield


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations draw no charts, which takes longer than all else that a small one does."""
    from tests.model_fn import fake

    fake.without_charts(monkeypatch)


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One process that has imported everything; what it forks starts at once."""
    from tests.programs.forking import Forker

    made = Forker(str(tmp_path_factory.mktemp("logs")))
    yield made
    made.close()


@pytest.fixture(scope="session")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The source distribution of this checkout."""
    from estimator_det.programs.cloud import source_package

    return source_package.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """Folder of photographs, records and published models, which are not ours to publish."""
    return pathlib.Path(os.environ["REAL_DATA"]).resolve()
