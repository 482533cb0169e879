"""Fixtures for all tests: an environment that holds no settings of the machine's, and a Hub on the loopback."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import REPO, TOKEN
from huggingface_hub import constants
from huggingface_hub.utils import close_session

import kimi_inspect.modelscope
import kimi_inspect.opening
import kimi_inspect.remote
from kimi_inspect.testing import HollowFile, LoopbackHub, Repository, kimi_k31_pro
from kimi_inspect.transport import Transport

_SETTINGS = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "TRANSFORMERS_", "MODELSCOPE_")
_PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Clear tokens, proxies and settings of the Hub's client, and give it an empty home, which is returned.

    The client reads its settings on import, so its constants are set too; subprocesses inherit the variables.
    """
    for name in list(os.environ):
        if name.startswith(_SETTINGS) or name.lower() in _PROXIES:
            monkeypatch.delenv(name)
    home = tmp_path / "hf-home"
    monkeypatch.setenv("HF_HOME", str(home))
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "https://huggingface.co/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    for name, place in (
        ("HF_HOME", home),
        ("HF_HUB_CACHE", home / "hub"),
        ("HF_ASSETS_CACHE", home / "assets"),
        ("HF_TOKEN_PATH", home / "token"),
        ("HF_STORED_TOKENS_PATH", home / "stored_tokens"),
    ):
        monkeypatch.setattr(constants, name, str(place))
    return home


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test fail that asks for the address of any machine but this one."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", "::1"):
            host.encode("idna")  # fails as the true one does, where the name has no form
            raise AssertionError(f"a test tried to reach {host}")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no headers between two looks of a test; the tests of the cache bring a fixture of this name that does."""
    monkeypatch.setattr(kimi_inspect.opening, "cache_folder", lambda: None)


@pytest.fixture(scope="session", autouse=True)
def one_session() -> Iterator[None]:
    """Keep one HTTP client for all tests, as a process has one: making it takes longer than most of them."""
    close_session()
    yield
    close_session()


@pytest.fixture(scope="session")
def kimi() -> dict[str, HollowFile]:
    """The files of a small Kimi K3.1 Pro: 8 shards of true headers."""
    return kimi_k31_pro(layers=5, experts=4)


@pytest.fixture
def hub(kimi: dict[str, HollowFile]) -> Iterator[LoopbackHub]:
    """A Hub that holds the small Kimi, public, and knows one good token."""
    with LoopbackHub([Repository(REPO, kimi)], tokens=[TOKEN]) as hub:
        yield hub


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let repositories and plain files make no pause before a retry; the list holds those that were asked for."""
    asked: list[float] = []

    def pause(seconds: float) -> bool:
        asked.append(seconds)
        return False

    for module in (kimi_inspect.remote, kimi_inspect.modelscope):
        monkeypatch.setattr(module, "Transport", functools.partial(Transport, pause=pause))
    return asked
