"""The real gcloud creates the printed jobs, at a server on this machine that records requests."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading

import pytest

from estimator_det.programs.cloud import ai_platform, vertex
from tests.cloud.test_vertex import JOBS

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed"),
]


@pytest.fixture
def service():
    """(address, requests as path and JSON)."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, json.loads(content)))
            answer = json.dumps({"name": "projects/1/locations/us-central1/customJobs/1"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            """Prints nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", requests
    server.shutdown()
    thread.join()
    server.server_close()


def _run(command, address, folder):
    environment = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM": address,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_ML": address,
    }
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def _as_sent(value):
    """As gcloud sends it: 64-bit numbers are texts."""
    if isinstance(value, dict):
        return {
            key: str(entry) if key == "replicaCount" else _as_sent(entry)
            for key, entry in value.items()
        }
    return [_as_sent(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("one", JOBS, ids=range(len(JOBS)))
def test_vertex_jobs_arrive_as_they_are_described(one, service, tmp_path):
    address, requests = service
    path = tmp_path / "job.json"
    path.write_text(json.dumps(vertex.job_spec(one)))
    done = _run(vertex.command(one, str(path)), address, tmp_path)
    assert done.returncode == 0, done.stderr
    ((where, sent),) = requests
    assert where.startswith("/v1/projects/my-project/locations/us-central1/customJobs")
    assert sent["displayName"] == one.name
    assert sent["jobSpec"] == _as_sent(vertex.job_spec(one))


def test_the_classic_command_is_parsed(service, tmp_path):
    address, requests = service
    path = tmp_path / "job.json"
    path.write_text(json.dumps(ai_platform.job_spec(JOBS[0])))
    done = _run(ai_platform.command(JOBS[0], str(path)), address, tmp_path)
    assert requests, done.stderr
    sent = requests[0][1]["trainingInput"]
    assert sent["masterType"] == "n1-standard-8" and sent["jobDir"] == "gs://bucket/run"
    assert sent["args"] == JOBS[0].arguments()
