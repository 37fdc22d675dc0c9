from __future__ import annotations

import socket

import pytest

from tests.programs.clusters import free_addresses


def test_free_addresses_are_kept_for_servers() -> None:
    for address in free_addresses(2):
        port = int(address.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0  # Nothing listens.
        with socket.socket() as client, socket.create_server(("127.0.0.1", port)):
            assert client.connect_ex(("127.0.0.1", port)) == 0
