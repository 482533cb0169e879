"""dask.distributed, an extra: a cluster on this machine hashes, and may lose a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from verified import flipped, shard_name, small_kimi, statuses, write

import kimi_inspect as ki
from kimi_inspect.hashing import DigestTask, digest_file

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("ignore")

# What the tests hand to the workers are inner functions: those are pickled with their code, so that a worker need not
# be able to import this module. One that cannot would say nothing and take no more work.

FILES = small_kimi()
TOTAL = sum(map(len, FILES.values()))
WORKERS = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES)


@pytest.fixture
def manifest(tmp_path: Path) -> ki.Manifest:
    return ki.lock(write(tmp_path / "copy", FILES), journal=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("dask")
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(**options, local_directory=str(place), host="127.0.0.1") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
        client.wait_for_workers(WORKERS, timeout=60)


@pytest.fixture
def client(cluster: Any) -> Any:
    """The cluster with all its workers: one that is killed while it starts may be lost for good."""
    cluster.wait_for_workers(WORKERS, timeout=60)
    return cluster


def test_a_cluster(folder: Path, manifest: ki.Manifest, client: Any) -> None:
    (folder / shard_name(2)).write_bytes(flipped(FILES[shard_name(2)], -2))
    found = ki.verify(folder, manifest, executor=client.get_executor())
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {shard_name(2): "mismatch"}
    assert found.bytes_hashed == TOTAL


def test_a_cluster_does_not_give_kept_results(folder: Path, manifest: ki.Manifest, client: Any) -> None:
    """Dask takes a call with equal arguments for the same call; a file that has changed since is another."""
    executor = client.get_executor()
    assert ki.verify(folder, manifest, executor=executor, journal=False).ok
    (folder / shard_name(2)).write_bytes(flipped(FILES[shard_name(2)], -2))
    assert not ki.verify(folder, manifest, executor=executor, journal=False).ok


def test_a_worker_of_the_cluster_that_dies(folder: Path, manifest: ki.Manifest, client: Any, tmp_path: Path) -> None:
    """The scheduler gives its files to another worker."""

    def die_once(path: str) -> None:
        try:
            Path(path).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    doomed = client.submit(die_once, str(tmp_path / "died"), pure=False)
    found = ki.verify(folder, manifest, executor=client.get_executor())
    doomed.result(timeout=60)
    assert (tmp_path / "died").exists()
    assert (found.ok, found.bytes_hashed) == (True, TOTAL)


def test_a_task_that_the_scheduler_gives_up(folder: Path, manifest: ki.Manifest, client: Any) -> None:
    """KilledWorker is what it says of a task of which worker after worker dies."""

    def die(_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Deadly(Executor):
        def submit(self, _: Any, task: DigestTask, /) -> Future[Any]:  # type: ignore[override]
            deadly = task.path.endswith(shard_name(3))
            client.wait_for_workers(WORKERS, timeout=60)
            return client.get_executor(retries=0).submit(die if deadly else digest_file, task)  # type: ignore[no-any-return]

    found = ki.verify(folder, manifest, executor=Deadly(), files=["*-00002-*", "*-00003-*"])
    assert statuses(found.having("ok")) == {shard_name(2): "ok", shard_name(3): "ok"}
