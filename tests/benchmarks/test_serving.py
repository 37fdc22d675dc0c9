"""Clients of `benchmarks.serving`, and its requests with damage."""

import random

from benchmarks.serving import client
from tests.exporters.server.serving import serving
from tests.exporters.server.test_server import encoded


def test_clients_get_answers_on_one_connection(monkeypatch):
    requests = [client.http_request("/v1/detect", body) for body in (encoded(), b"no image")]
    answers = {}

    def work(connection, number):
        answers[number] = [connection.ask(requests[i])[0] for i in (0, 1, 0)]

    with serving() as address:
        port = int(address.url.rpartition(":")[2])
        client.load(port, 3, work)
        assert answers == {number: [200, 400, 200] for number in range(3)}
        assert client.status_of(port, requests[0]) == "200"
        assert client.status_of(port, b"nonsense\r\n\r\n") == "400"
        # A server may wait for the rest of a damaged request.
        monkeypatch.setattr(client, "WAIT_SECONDS", 0.2)
        damaged = {client.mutated(encoded(), random.Random(seed)) for seed in range(20)}
        assert len(damaged) == 20
        assert {client.status_of(port, each) for each in damaged} <= {
            "200", "400", "404", "405", "none"
        }  # fmt: skip
