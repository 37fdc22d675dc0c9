"""Pretrained weights: names, downloads over a bad network, hostile archives, fine-tuning."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import pathlib
import tarfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import make_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.extractors.center_net.registry import EXTRACTORS as CENTER_NET_EXTRACTORS
from estimator_det.extractors.ssd.registry import EXTRACTORS as SSD_EXTRACTORS
from estimator_det.extractors.two_stage.registry import EXTRACTORS as TWO_STAGE_EXTRACTORS
from estimator_det.nets.object_paths import KERAS
from estimator_det.programs import cli, pretrained
from exporters.importing.importer import write_checkpoint
from model_fn.training import warm_start
from tests.detectors.configs import small_config

# Fields that configurations of 2017 have and later ones renamed.
OLD_FIELDS = """
model { ssd { feature_extractor { batch_norm_trainable: true } } }
train_config { from_detection_checkpoint: true fine_tune_checkpoint: "PATH_TO_BE_CONFIGURED" }
eval_config { num_examples: 8000 max_evals: 10 }
"""

Members = List[Tuple[tarfile.TarInfo, bytes]]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = "/etc"
    return info, content


def write_archive(path: pathlib.Path, members: Members) -> pathlib.Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def zoo_files(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, bytes]:
    """Files of an archive as the zoo publishes them, of a small detector with four classes."""
    folder = tmp_path_factory.mktemp("zoo")
    with tf.Graph().as_default(), tf1.Session() as session:
        model = small_config("num_classes: 4")
        make_detector(model, is_training=True).predict(tf.zeros([1, 64, 64, 3]))
        session.run(tf1.global_variables_initializer())
        values = session.run({v.op.name: v for v in tf1.global_variables()})
    write_checkpoint(str(folder / "model.ckpt"), values, num_neutral=0)
    config = pipeline.parse_pipeline(OLD_FIELDS)
    config.model.MergeFrom(model)
    (folder / "pipeline.config").write_text(text_format.MessageToString(config))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def archive(zoo_files: Dict[str, bytes], tmp_path: pathlib.Path) -> pathlib.Path:
    members = [member(f"small_2018_01_28/{name}", data) for name, data in zoo_files.items()]
    members.append(member("small_2018_01_28/saved_model/variables/variables.index", b"-"))
    return write_archive(tmp_path / "small_2018_01_28.tar.gz", members)


class Server:
    """Serves one file on loopback; `faults` are (bytes until the connection breaks) by request."""

    def __init__(self, content: bytes, faults: Any = (), pause: float = 0.0, status: int = 200):
        self.requests = 0
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                end = dict(enumerate(faults)).get(server.requests, len(content))
                server.requests += 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client has gone
                    for start in range(0, end, 4096):
                        self.wfile.write(content[start : min(start + 4096, end)])
                        time.sleep(pause)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/small_2018_01_28.tar.gz"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts a server, and puts its file into the zoo as "small"."""
    servers: List[Server] = []

    def start(content: bytes, checksum: Optional[str] = None, **settings: Any) -> Server:
        server = Server(content, **settings)
        servers.append(server)
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}" if checksum is None else checksum
        model = pretrained.ZooModel("small", server.url, "small", "COCO", "21", "30 ms", checksum)
        monkeypatch.setattr(pretrained, "zoo", lambda: [model])
        return server

    monkeypatch.setattr(time, "sleep", lambda secs, sleep=time.sleep: sleep(min(secs, 0.05)))
    yield start
    for server in servers:
        server.close()


def test_every_model_of_the_zoo_has_an_extractor_and_a_sound_checksum():
    models = pretrained.zoo()
    assert len({model.name for model in models}) == len({model.file for model in models}) == 88
    for model in models:
        is_center_net = model.extractor in CENTER_NET_EXTRACTORS
        assert is_center_net or model.extractor in {*SSD_EXTRACTORS, *TWO_STAGE_EXTRACTORS}
        assert model.url.startswith("https://") and model.url.endswith(".tar.gz")
        assert model.data in model.published
        assert (model.line == "TF2") == (is_center_net or model.extractor.endswith(KERAS))
        algorithm, _, checksum = model.checksum.partition(":")
        assert len(checksum) == {"": 0, "sha256": 64, "sha384": 96}[algorithm]
        assert pretrained.find_model(model.file[: -len(".tar.gz")]) == model
    assert sum(bool(model.checksum) for model in models) == 15


def test_download_once_then_from_the_cache(archive, serve, tmp_path, caplog):
    caplog.set_level("INFO")
    server = serve(archive.read_bytes())
    weights = pretrained.resolve("small", str(tmp_path / "cache"))
    assert pretrained.resolve("small_2018_01_28", str(tmp_path / "cache")) == weights
    assert server.requests == 1
    assert weights.checkpoint.endswith("small_2018_01_28/model.ckpt")
    assert weights.checkpoint_type == "detection"
    assert weights.config.model.ssd.num_classes == 4
    assert weights.zoo_model and weights.zoo_model.published == "COCO mAP 21, 30 ms"
    assert "(as published)" in caplog.text
    assert not list((tmp_path / "cache").glob(".unpack*"))


def test_a_replaced_archive_gives_the_new_weights(tmp_path):
    folders = []
    for content in (b"old", b"new"):
        archive = write_archive(tmp_path / "model.tar.gz", [member("model/weights", content)])
        folders.append(pretrained.unpack(str(archive), str(tmp_path / "cache")))
        assert pathlib.Path(folders[-1], "model", "weights").read_bytes() == content
    assert len(set(folders)) == 2


def test_a_model_without_a_network_is_named_as_such():
    with pytest.raises(UsageError, match="extremenet' of the TensorFlow 2 model zoo has a network"):
        pretrained.find_model("extremenet")


def test_slow_and_broken_connections_are_tried_again(archive, serve, tmp_path):
    content = archive.read_bytes()
    server = serve(content, faults=[len(content) // 2, 0], pause=0.01)
    assert pretrained.resolve("small", str(tmp_path / "cache")).name == "small"
    assert server.requests == 3


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"faults": [5000] * 9}, "IncompleteRead"),
        ({"checksum": "sha256:" + "0" * 64}, "its checksum is not the published sha256:000"),
        ({"pause": 9.0}, "Read timed out"),
        ({"status": 404}, "404 Client Error"),
    ],
    ids=["broken", "checksum", "stalled", "missing"],
)
def test_failed_downloads_say_what_to_put_where(
    settings, cause, archive, serve, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(pretrained, "TIMEOUT_SECS", 0.2)
    if "pause" in settings:
        wait = threading.Event().wait  # the pauses of the server alone last
        monkeypatch.setattr(time, "sleep", lambda secs: wait(secs if secs == 9.0 else 0.05))
    server = serve(archive.read_bytes(), **settings)
    cache = tmp_path / "cache"
    assert cli.main(["pretrained", "small", "--cache_dir", str(cache)]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: small cannot be downloaded: ") and cause in error
    assert error.endswith(f"get {server.url} by other means and put it at {cache / archive.name}")
    assert list(cache.iterdir()) == []


def test_without_a_network_a_file_put_into_the_cache_is_used(archive, serve, tmp_path):
    server = serve(archive.read_bytes())
    server.close()
    cache = tmp_path / "cache"
    with pytest.raises(RunError, match=r"no connection to 127\.0\.0\.1:\d+\. Run the command"):
        pretrained.resolve("small", str(cache))
    (cache / archive.name).write_bytes(b"something else")
    with pytest.raises(
        RunError, match=r"Delete the file to download it again, or replace it by http://"
    ):
        pretrained.resolve("small", str(cache))
    (cache / archive.name).write_bytes(archive.read_bytes())
    assert pretrained.resolve("small", str(cache)).checkpoint_type == "detection"


PAX_HEADER = tarfile.TarInfo("header")
PAX_HEADER.type, PAX_HEADER.size = tarfile.XHDTYPE, 2**26


@pytest.mark.parametrize(
    ("hostile", "fault"),
    [
        (member("../outside", b"1"), "leaves the folder"),
        (member("a/../../outside", b"1"), "leaves the folder"),
        (member("/tmp/outside", b"1"), "leaves the folder"),
        (member("a\\..\\outside", b"1"), "leaves the folder"),
        (member("C:/outside", b"1"), "leaves the folder"),
        (member("link", kind=tarfile.SYMTYPE), "is a link or a device"),
        (member("link", kind=tarfile.LNKTYPE), "is a link or a device"),
        (member("device", kind=tarfile.CHRTYPE), "is a link or a device"),
        (member("pipe", kind=tarfile.FIFOTYPE), "is a link or a device"),
        (member("zeros", bytes(2**23)), "brings the unpacked size to 8,388,609 bytes; allowed: "),
        (member("a/good/file", b"1"), "is not a whole .tar.gz file"),
        (member("a", b"1"), "is not a whole .tar.gz file"),
        ((PAX_HEADER, bytes(2**26)), r"is not a whole .tar.gz file \(a header has 67,108,864"),
    ],
)
def test_hostile_archives_leave_nothing(hostile, fault, tmp_path):
    path = write_archive(tmp_path / "a.tar.gz", [member("a/good", b"1"), hostile])
    with pytest.raises(RunError, match=fault):
        pretrained.resolve(str(path), str(tmp_path / "cache"))
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.tar.gz", "cache"]


def test_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "MAX_FILES", 2)
    path = write_archive(tmp_path / "a.tar.gz", [member(name) for name in "abc"])
    with pytest.raises(RunError, match=r"'c' is file 3; allowed: 2"):
        pretrained.unpack(str(path), str(tmp_path / "cache"))


def test_damaged_archives(archive, tmp_path):
    content = archive.read_bytes()
    tar = gzip.decompress(content)
    second = tar.index(b"small_2018", 1)  # a header within the archive
    headers = [tar[:place] + b"?" + tar[place + 1 :] for place in (0, second)]
    parts = [b"", b"no archive", content[: len(content) // 2], content[:-8] + bytes(8)]
    for data in [*parts, *map(gzip.compress, headers)]:
        archive.write_bytes(data)
        with pytest.raises(RunError, match=r"not a whole \.tar\.gz file .*get it again"):
            pretrained.resolve(str(archive), str(tmp_path / "cache"))


def test_archives_of_other_kinds_are_refused(tmp_path):
    path = write_archive(tmp_path / "a.tgz", [member("notes.txt", b"1")])
    with pytest.raises(FileNotFoundError, match="contains neither a checkpoint"):
        pretrained.resolve(str(path), str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no such archive .*missing\.tar\.gz"):
        pretrained.resolve("missing.tar.gz", str(tmp_path))
    for name, wrong in (
        ("ssd_mobilenet_v2_coco", "ssd_mobilenet_v2_cocoo"),
        ("ssd_mobilenet_v2_320x320_coco17_tpu-8", "ssd_mobilenet_v2_coco17_tpu-8"),
        ("efficientdet_d7_coco17_tpu-32", "efficientdet_d8_coco17_tpu-32"),
    ):
        with pytest.raises(UsageError, match=rf"did you mean '{name}'\? `"):
            pretrained.resolve(wrong, str(tmp_path))
    folder = tmp_path / "keras"
    folder.mkdir()
    tf.train.Checkpoint(step=tf.Variable(1)).write(str(folder / "ckpt-0"))
    with pytest.raises(RunError, match=r"contains no detector and no classifier, but .*step"):
        pretrained.resolve(str(folder))
    tf.train.Checkpoint(model=tf.Module()).write(str(folder / "ckpt-0"))
    assert pretrained.resolve(str(folder)).checkpoint_type == "detection"


def test_float_before_quantized_and_the_newest_step(zoo_files, tmp_path):
    for name in ("uint8/model.ckpt-9", "fp32/model.ckpt-4", "fp32/model.ckpt-12"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        for suffix in (".index", ".data-00000-of-00001"):
            (tmp_path / (name + suffix)).write_bytes(zoo_files[f"model.ckpt{suffix}"])
        (tmp_path / name).with_name("pipeline.config").write_bytes(zoo_files["pipeline.config"])
    weights = pretrained.resolve(str(tmp_path))
    assert weights.checkpoint == str(tmp_path / "fp32" / "model.ckpt-12")
    assert weights.config_path == str(tmp_path / "fp32" / "pipeline.config")


def test_a_training_with_other_classes_starts_from_the_archive(archive, tmp_path):
    weights = pretrained.resolve(str(archive), str(tmp_path / "cache"))
    config = pipeline.set_values(weights.config, weights.fields.items())
    with tf.Graph().as_default():
        detector = make_detector(small_config("num_classes: 2"), is_training=True)
        detector.predict(tf.zeros([1, 64, 64, 3]))
        table = warm_start.table_of(detector, config.train_config)
    assert table.share == 1.0
    assert [name for name, _, _ in table.mismatched]  # heads of classes
    assert all("ClassPredictor" in name for name, _, _ in table.mismatched)
    assert any("BoxEncodingPredictor" in name for name in table.restored)
    assert table.missing == []


def test_checkpoint_of_a_classifier(tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        weight = tf1.get_variable("MobilenetV1/Conv2d_0/weights", [1])
        session.run(weight.initializer)
        tf1.train.Saver().save(session, str(tmp_path / "mobilenet_v1_1.0_224.ckpt"))
    weights = pretrained.resolve(str(tmp_path))
    assert (weights.checkpoint_type, weights.config) == ("classification", None)
    assert weights.fields == {
        "train_config.fine_tune_checkpoint": weights.checkpoint,
        "train_config.fine_tune_checkpoint_type": "classification",
        "train_config.load_all_detection_checkpoint_vars": False,
    }


def test_the_verb_lists_and_explains(archive, tmp_path, capsys):
    assert cli.main(["pretrained", "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    lines = {name: (line, *published) for name, line, _, *published in rows}
    assert lines["ssd_mobilenet_v2_coco"] == ("TF1", "COCO", "mAP", "22,", "31", "ms")
    name = "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8"
    assert lines[name] == ("TF2", "COCO", "mAP", "39.0/34.6,", "301", "ms")
    assert cli.main(["pretrained"]) == 2
    assert cli.main(["pretrained", str(archive), "--cache_dir", str(tmp_path / "cache")]) == 0
    lines = capsys.readouterr().out
    assert "--set train_config.fine_tune_checkpoint_type=detection" in lines
    assert "published" not in lines
