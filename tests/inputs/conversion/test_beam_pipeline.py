"""The Beam runner; the pipeline itself runs where apache-beam is installed."""

import sys
import types

import pytest

from estimator_det.errors import UsageError
from inputs.conversion import beam_pipeline
from inputs.datasets.source import ConversionError
from tests.inputs.conversion import samples
from tests.inputs.conversion.test_engine import HEADER, content, many


def test_without_beam_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UsageError, match=r"needs Apache Beam.*pip install '.*\[beam\]'"):
        beam_pipeline.make_runner("DirectRunner")


def test_unknown_runners_are_refused(monkeypatch):
    standard = types.SimpleNamespace(KNOWN_RUNNER_NAMES=["DirectRunner", "DataflowRunner"])
    options = types.SimpleNamespace(StandardOptions=standard)
    package = types.SimpleNamespace(pipeline_options=options)
    monkeypatch.setitem(sys.modules, "apache_beam", types.SimpleNamespace(options=package))
    monkeypatch.setitem(sys.modules, "apache_beam.options", package)
    with pytest.raises(
        UsageError, match=r"'DirectRuner' is not known; did you mean 'DirectRunner'"
    ):
        beam_pipeline.make_runner("DirectRuner")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Beam
def test_direct_runner_gives_the_same_bytes(tmp_path):
    pytest.importorskip("apache_beam", exc_type=ImportError)
    run = beam_pipeline.make_runner("DirectRunner")
    sample = many(tmp_path, 9)
    options = {"num_shards": 3, "image": HEADER}
    samples.convert(sample, tmp_path / "one", **options)
    samples.convert(sample, tmp_path / "two", run=run, **options)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    (tmp_path / "images" / "004.png").write_bytes(b"damage")
    with pytest.raises(ConversionError, match=r"boxes.csv, line 6: undecodable_image: '004.png'"):
        samples.convert(sample, tmp_path / "three", run=run, **options)
