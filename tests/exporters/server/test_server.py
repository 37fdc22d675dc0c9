"""The HTTP interface: answers, limits, batches and versions, with a model of no weights."""

import base64
import concurrent.futures
import contextlib
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
import requests
from PIL import Image

from estimator_det.compat import tf
from estimator_det.errors import RunError
from estimator_det.programs import cli
from exporters import Detector
from exporters.server import batching
from exporters.server import run as server_run
from exporters.server.app import Limits
from exporters.server.backend import BackendError, RemoteModel
from exporters.server.versions import served_folder
from tests.exporters.server.serving import EVIL, Brightness, serving


def encoded(value: int = 128, size=(40, 20), image_format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, image_format, **options)
    return file.getvalue()


def b64(content: bytes) -> dict:
    return {"b64": base64.b64encode(content).decode()}


@pytest.fixture(scope="module")
def served():
    with serving(limits=Limits(body_bytes=1 << 20, pixels=1_000_000)) as address:
        yield address


def test_detections(served):
    answer = served.post("/v1/detect?threshold=0.3", encoded(128)).json()
    assert (answer["height"], answer["width"], answer["version"]) == (20, 40, 1)
    (found,) = answer["detections"]
    assert found["name"] == EVIL and found["score"] == pytest.approx(128 / 255, abs=1e-6)
    assert found["box_pixels"] == {"ymin": 5.0, "xmin": 10.0, "ymax": 10.0, "xmax": 30.0}
    url = '/v1/detect?threshold=0&classes="cup, red",'
    form = served.post(url, files={"a": ("a.png", encoded())}).json()
    assert [each["name"] for each in form["detections"]] == ["cup, red"]
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    upright = served.post("/v1/detect", encoded(image_format="JPEG", exif=exif)).json()
    assert (upright["height"], upright["width"]) == (40, 20)


def test_predictions_as_tensorflow_serving_answers(served):
    pixels = np.full([20, 40, 3], 51)
    url = "/v1/models/detector:predict"
    rows = [b64(encoded(51)), {"image": b64(encoded(51))}, pixels.tolist()]
    for row in rows:
        body = {"instances": [row], "signature_name": "encoded_image_string_tensor"}
        (found,) = served.post(url, json.dumps(body)).json()["predictions"]
        assert found["num_detections"] == 2.0 and np.shape(found["detection_boxes"]) == (3, 4)
        assert found["detection_scores"][0] == pytest.approx(0.2) and "unbatched" not in found
        column = {"inputs": {"image": [row]}, "signature_name": "image_tensor"}
        outputs = served.post(url, json.dumps(column)).json()["outputs"]
        assert np.shape(outputs["detection_boxes"]) == (1, 3, 4)
    version = served.post("/v1/models/detector/versions/1:predict", json.dumps({"instances": rows}))
    assert len(version.json()["predictions"]) == 3
    (state,) = served.get("/v1/models/detector").json()["model_version_status"]
    assert (state["version"], state["state"]) == ("1", "AVAILABLE")
    metadata = served.get("/v1/models/detector/versions/1/metadata").json()
    outputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert [each["size"] for each in outputs["detection_boxes"]["tensor_shape"]["dim"]] == [
        "-1", "3", "4",
    ]  # fmt: skip


BAD = [
    ("/v1/detect", b"", 400, "not an image of a known format"),
    ("/v1/detect", encoded()[:60], 400, "the image: "),
    ("/v1/detect", encoded(size=(1001, 1000)), 400, "has 1001 x 1000 pixels, and the limit is 1"),
    ("/v1/detect", b"0" * (1 << 21), 413, "has more than 1 MiB"),
    ("/v1/detect?threshold=nan", encoded(), 400, "threshold is nan; give a number from 0 to 1"),
    ("/v1/detect?threshold=auto", encoded(), 400, "the model has none; give a number"),
    ("/v1/detect?treshold=0.5", encoded(), 400, "unknown parameter treshold"),
    ("/v1/detect?classes=dog", encoded(), 400, "has no class dog; known: <script>"),
    ("/v1/models/detector:predict", b"[" * 100_000, 400, "JSON"),
    ("/v1/models/detector:predict", b"[]", 400, "must be a JSON object"),
    ("/v1/models/detector:predict", b'{"instances": []}', 400, "there is no image"),
    ("/v1/models/detector:predict", b'{"instances": [{"b64": "*"}]}', 400, "is not base64"),
    ("/v1/models/detector:predict", b'{"instances": [[[1, 2], [3]]]}', 400, "no list of numbers"),
    ("/v1/models/detector:predict", b'{"instances": [[[[1, 2, NaN]]]]}', 400, "from 0 to 255"),
    ("/v1/models/detector:predict", json.dumps({"inputs": [0] * 65}), 400, "65 images; one req"),
    ("/v1/models/detector:predict", b'{"inputs": [0], "signature_name": 1}', 400, "signature 1;"),
    ("/v1/models/detector/versions/2:predict", b"{}", 404, "Specific(detector, 2); version 1"),
    ("/v1/models/other:predict", b"{}", 404, "other:predict; the model is /v1/models/detector"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), BAD)
def test_bad_requests(served, path, body, status, text):
    response = served.post(path, body)
    assert response.status_code == status and text in response.json()["error"]


def test_a_body_of_unknown_length_is_cut(served):
    response = served.post("/v1/detect", (b"0" * (1 << 18) for _ in range(9)))
    assert response.status_code == 413


def test_names_of_other_hosts_and_missing_methods_are_refused(served):
    assert served.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert served.get("/v1/detect").status_code == 405
    assert served.get("/v1/models/detector:predict").json()["error"] == "Method Not Allowed"


def test_metrics_and_health(served):
    served.post("/v1/detect", b"")
    text = served.get("/metrics").text
    assert 'estimator_det_requests_total{route="detect",status="400"}' in text
    assert 'estimator_det_errors_total{kind="bad_image"}' in text
    assert "estimator_det_batch_images_bucket" in text and "estimator_det_queue 0.0" in text
    assert served.get("/healthz").json() == {"status": "ok"}


def test_the_page_runs_only_its_own_script(served):
    response = served.get("/")
    assert "detector" in response.text and len(response.content) < 60_000
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert "src=" not in response.text and "http" not in response.text.replace("https or", "")


def test_a_token_is_asked_for():
    with serving(token="secret") as address:
        assert address.post("/v1/detect", encoded()).status_code == 401
        wrong = {"Authorization": "Bearer other"}
        assert address.post("/v1/detect", encoded(), headers=wrong).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert address.post("/v1/detect", encoded(), headers=right).status_code == 200
        assert address.get("/").status_code == address.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("turn", "running", "most"), [(contextlib.nullcontext(), 2, 4), (threading.Lock(), 1, 2)]
)
def test_batches_of_one_size_and_a_bounded_queue(turn, running, most, monkeypatch):
    monkeypatch.setattr(batching, "MOST_BATCH_BYTES", most * 40 * 20 * 3)
    model = Brightness()
    model.turn = turn
    limits = Limits(queue=12)
    with serving(load=lambda _: Detector(model), limits=limits, max_wait=0.3) as address:
        model.batches.clear()
        model.may_end.clear()
        bodies = [encoded(i, size) for i in range(8) for size in ((40, 20), (20, 40))]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(address.post, "/v1/detect?threshold=0", each) for each in bodies]
            refused = list(itertools.islice(concurrent.futures.as_completed(asked), 4))
            while model.running < running:
                time.sleep(0.01)
            model.may_end.set()
            answers = [each.result() for each in asked]
    assert sum(model.batches) == 12 and max(model.batches) <= most and len(model.batches) < 9
    assert model.most_running == running
    assert {each.result().status_code for each in refused} == {503}
    assert refused[0].result().headers["Retry-After"] == "1"
    for i, answer in enumerate(answers):
        if answer.status_code == 200:  # each has its own detections and size
            found = answer.json()
            scores = [each["score"] for each in found["detections"] if each["name"] == EVIL]
            assert scores == [pytest.approx(i // 2 / 255, abs=1e-6)]
            assert found["width"] == (40, 20)[i % 2]


def test_a_model_that_fails(caplog):
    class Failing(Brightness):
        def run(self, images):
            if images.shape[1] == 20:
                raise tf.errors.InvalidArgumentError(None, None, "at /home/me/model")
            if images.shape[1] == 30:
                raise KeyError("a fault of ours")
            return super().run(images)

    with serving(load=lambda _: Detector(Failing())) as address:
        response = address.post("/v1/detect", encoded())
        assert response.status_code == 400
        assert response.json() == {"error": "the model cannot use an image of 40 x 20 pixels"}
        response = address.post("/v1/detect", encoded(size=(30, 30)))
        assert response.status_code == 500
        assert response.json() == {"error": "the server failed; its log says why"}
        assert address.post("/v1/detect", encoded(size=(40, 40))).status_code == 200
    assert "a fault of ours" in caplog.text


def test_a_new_version_takes_over_without_a_lost_request(tmp_path, caplog):
    def load(path):
        if (tmp_path / os.path.basename(path) / "damaged").exists():
            raise RunError(f"{path} is damaged")
        return Detector(Brightness(path))

    (tmp_path / "00000003").mkdir()
    with serving(str(tmp_path), load=load) as address:
        stop, answers = threading.Event(), []

        def ask():
            with requests.Session() as session:
                while not stop.is_set():
                    url = f"{address.url}/v1/detect"
                    answers.append(session.post(url, data=encoded(), timeout=30))

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        for number in range(4, 24):
            (tmp_path / str(number)).mkdir()
            assert address.models.update()
        (tmp_path / "25").mkdir()
        (tmp_path / "25" / "damaged").touch()
        (tmp_path / "24").mkdir()
        (tmp_path / "temp-26").mkdir()
        assert [address.models.update() for _ in range(3)] == [False, True, False]
        stop.set()
        for client in clients:
            client.join()
        assert {each.status_code for each in answers} == {200}
        assert address.post("/v1/detect", encoded()).json()["version"] == 24
        states = address.get("/v1/models/detector").json()["model_version_status"]
        assert [each["state"] for each in states[:3]] == ["END", "AVAILABLE", "END"]
        assert str(tmp_path) not in json.dumps(states)
        assert caplog.text.count("version 25 of the model could not be loaded, and version 23") == 1
        (tmp_path / "25" / "damaged").unlink()  # as if a copy were complete only now
        assert address.models.update() and address.models.current.number == 25


def test_the_folder_of_a_run(tmp_path):
    (tmp_path / "pipeline.config").touch()
    assert served_folder(str(tmp_path)) == str(tmp_path)  # an export has a configuration, too
    (tmp_path / "model.ckpt-5.index").touch()
    with pytest.raises(RunError, match="has no export yet: train it with --best_metric"):
        served_folder(str(tmp_path))
    (tmp_path / "export" / "Servo" / "100").mkdir(parents=True)
    assert served_folder(str(tmp_path)) == str(tmp_path / "export" / "Servo")
    (tmp_path / "export" / "best" / "100").mkdir(parents=True)
    assert served_folder(str(tmp_path)) == str(tmp_path / "export" / "best")


def test_a_backend_of_the_same_interface(served):
    """Our server stands in for TensorFlow Serving; another one shows the page in front of it."""
    backend = f"{served.url}/v1/models/detector"
    with serving(load=lambda _: Detector(RemoteModel(backend, {2: "cat"}))) as front:
        answer = front.post("/v1/detect?threshold=0", encoded(51)).json()
        names, scores = zip(*((each["name"], each["score"]) for each in answer["detections"]))
        assert names == ("cat", "1") and scores == pytest.approx((0.25, 0.2))
    with pytest.raises(BackendError, match="answers 404: there is no"):
        RemoteModel(f"{served.url}/v1/models/other", {})
    with pytest.raises(BackendError, match="does not answer"):
        RemoteModel("http://127.0.0.1:9/v1/models/detector", {})


def test_keypoints_of_a_backend(monkeypatch):
    row = {
        "num_detections": 1,
        "detection_boxes": [[0, 0, 1, 1]],
        "detection_scores": [0.5],
        "detection_classes": [1],
        "detection_keypoints": [[[0.25, 0.5]]],
        "detection_keypoint_scores": [[0.75]],
    }
    signature = {"inputs": {"image": {"dtype": "DT_UINT8"}}, "outputs": dict.fromkeys(row)}
    metadata = {"signature_def": {"signature_def": {"serving_default": signature}}}
    answers = {"GET": {"metadata": metadata}, "POST": {"predictions": [row]}}
    monkeypatch.setattr(RemoteModel, "_request", lambda self, method, url, **body: answers[method])
    found = Detector(RemoteModel("http://host/v1/models/pose", {}))(np.zeros([8, 8, 3], np.uint8))
    assert found.keypoints.tolist() == [[[0.25, 0.5]]]
    assert found.keypoint_scores.tolist() == [[0.75]]


def test_usage(capsys, tmp_path):
    for arguments, message in (
        ([], "give either EXPORT or --backend URL"),
        (["a", "--backend", "http://b"], "give either EXPORT or --backend URL"),
        (["a", "--label_map", "m"], "--label_map is for a --backend"),
        (["a", "--port", "0"], "'0' is not a number from 1 to 65535"),
        (["a", "--name", "a/b"], "give letters, digits"),
    ):
        assert cli.main(["serve", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["serve", str(tmp_path / "none")]) == 3
    run = tmp_path / "run"  # of a project
    run.mkdir()
    for name in ("pipeline.config", "model.ckpt-5.index", "a.jpg"):
        (run / name).touch()
    image = str(run / "a.jpg")
    for arguments in (["serve"], ["detect"], ["suggest", "--images", image]):
        more = [image] if arguments == ["detect"] else []
        assert cli.main([*arguments[:1], str(tmp_path), *more, *arguments[1:]]) == 1
        assert f"the run {run} has no export yet" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} of 127.0.0.1 .*: Address already in use;"):
            server_run.run(None, None, "127.0.0.1", port, announce=print)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("a daemon" if thread.daemon else "the process goes on")

    with (
        mock.patch.multiple(server_run, uvicorn=mock.DEFAULT, signal=mock.DEFAULT),
        mock.patch.object(threading.Thread, "start", start),
        pytest.raises(RuntimeError, match="a daemon"),
    ):
        server_run.run(mock.Mock(), mock.Mock(), "127.0.0.1", 0, announce=print)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, pytest.param(143, marks=pytest.mark.exhaustive)])
def test_a_signal_ends_the_program_after_the_last_answer(exported, pictures, tmp_path, code):
    """A second one at once, also in a container, where no signal has an effect of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["-m", "estimator_det", "serve", exported, "--port", str(port)]
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
    url, body = f"http://127.0.0.1:{port}/v1/detect?threshold=0", (tmp_path / "a.png").read_bytes()
    try:
        while process.poll() is None:
            try:
                first = requests.post(url, data=body, timeout=60).json()
                break
            except requests.ConnectionError:
                time.sleep(0.1)
        expected = Detector(exported)(pictures[0])
        assert [each["name"] for each in first["detections"]] == list(expected.names)
        head = f"POST /v1/detect?threshold=0 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as begun:
            begun.sendall(head.encode())
            assert b"100 Continue" in begun.recv(1000)  # the server reads this request
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionRefusedError):
                while True:
                    socket.create_connection(("127.0.0.1", port)).close()
            if code:
                while process.poll() is None:  # At first it is the same signal again.
                    process.send_signal(signal.SIGTERM)
            else:
                begun.sendall(body)
                assert b" 200 " in begun.recv(1000)
        assert process.wait(60) == code
    finally:
        process.kill()
    text = (tmp_path / "log").read_text()
    assert "only this machine can reach it" in text and "Traceback" not in text
