from __future__ import annotations

import pathlib
from typing import Any, Dict, Iterator, List

import pytest

from estimator_det.compat import tf, versions
from tests.programs.clusters import LocalCluster, Make
from tests.programs.forking import Forker, Run


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs remember about this machine is not written into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESTIMATOR_DET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no TPU."""
    for name in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake_cluster(forker: Forker, tmp_path: pathlib.Path) -> Iterator[Make]:
    """Builds clusters that train the fake detector in `tmp_path`/model."""
    clusters: List[LocalCluster] = []

    def make(workers: int = 2, servers: int = 1, chief: str = "chief", **settings: Any) -> Any:
        is_newer = versions.release(tf.__version__) >= versions.WITHOUT_ESTIMATOR
        if servers and "strategy" not in settings and is_newer:
            pytest.skip("parameter servers of an Estimator need TensorFlow 2.15")
        settings = {"ballast": 10, "eval_secs": 0, "save_steps": 10, **settings}

        def start(environment: Dict[str, str]) -> Run:
            return forker.fake_training(
                str(tmp_path / "model"), environment=environment, **settings
            )

        clusters.append(LocalCluster(start, workers, servers, chief))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.kill()
