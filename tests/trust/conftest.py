"""An empty cache, no data folder and default limits for every test; a fixture that forbids the network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NoReturn

import pytest


class NetworkUsedError(BaseException):
    """Not an Exception, so that no library handles it as a network that is down."""


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for name in ("HF_DATASETS_CACHE", "POWERPOOL_DATA", "POWERPOOL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIXELS", "FILES", "UNPACKED", "RATIO", "TEXT"):
        monkeypatch.delenv(f"POWERPOOL_MAX_{name}", raising=False)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a host or connecting fails the test."""

    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise NetworkUsedError(f"the network was used: {arguments}")

    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
