"""What a fit keeps between its passes: in memory, on disk or not at all, always with the same bits."""

from __future__ import annotations

import errno
import os
import stat

import numpy as np
import pytest

import dpkernel
from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor, PrivateQuantileRegressor
from dpkernel.data import cache
from dpkernel.data.cache import CacheLimits, NoRoomError, Room, Spool
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.privacy.noise import SeededNoise

PLACES = {"memory": (2**29, 0), "disk": (0, 2**29), "": (0, 0)}


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Return a function that sets limits for one test; the spool goes to a folder of its own."""
    return lambda memory, disk: monkeypatch.setattr(
        cache, "_limits", CacheLimits(memory, disk, str(tmp_path))
    )


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (6000, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


def tripled(X, y):
    return 3 * X, y


# --- the spool ------------------------------------------------------------------------------------


def test_a_spool_gives_back_the_bits_that_it_was_given(rng, tmp_path):
    blocks = [
        (
            rng.normal(size=(7, 3)).astype(np.float32),
            rng.integers(-9, 9, 7),
            np.array(["nan"], "f8"),
        ),
        (np.empty((0, 3), np.float32), np.empty(0, np.int64), np.array([-0.0, np.inf])),
        (np.asfortranarray(rng.normal(size=(4, 3))), np.arange(8)[::2], np.float64(2.5)),
    ]
    spool = Spool(1000, str(tmp_path))
    for block in blocks:
        spool.append(block)
    for _ in range(2):
        for found, wanted in zip(spool, blocks, strict=True):
            for one, other in zip(found, map(np.asarray, wanted), strict=True):
                assert one.dtype == other.dtype
                assert one.tobytes() == other.tobytes()


def test_a_spool_has_no_name_and_only_its_owner_may_read_it(tmp_path):
    spool = Spool(1000, str(tmp_path))
    spool.append((np.ones(5),))
    assert os.listdir(tmp_path) == []
    assert stat.S_IMODE(os.fstat(spool._file.fileno()).st_mode) == 0o600
    assert os.fstat(spool._file.fileno()).st_nlink == 0


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="cannot reserve room on a disk")
def test_a_disk_without_room_is_found_before_anything_is_written(tmp_path):
    with pytest.raises(NoRoomError):
        Spool(2**60, str(tmp_path))


def test_a_spool_that_was_cut_short_is_never_read_as_zeros(tmp_path):
    spool = Spool(80, str(tmp_path))
    spool.append((np.ones(10),))
    os.ftruncate(spool._file.fileno(), 30)
    with pytest.raises(OSError, match="cut short"):
        list(spool)


# --- passes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_blocks_are_the_same_wherever_they_are_kept(table, limits, place, joined):
    limits(*PLACES[place])
    X, y = table
    found = Passes(Source("array", 6000, 3, (), X, y)).then(tripled, bytes_a_row=32, joined=joined)
    assert found.place == place
    for _ in range(2):
        blocks = list(found.blocks())
        assert len(blocks) == (1 if joined and place else 2)
        np.testing.assert_array_equal(np.concatenate([b[0] for b in blocks]), 3 * X)
        np.testing.assert_array_equal(np.concatenate([b[1] for b in blocks]), y)


def test_memory_is_used_first_then_the_disk_then_more_memory():
    room = Room(memory=100, disk=1000, more_memory=5000)
    assert room.take(100) == ("memory", Room(0, 1000, 4900))
    assert room.take(101) == ("disk", Room(100, 899, 5000))
    assert room.take(1001) == ("memory", Room(0, 1000, 3999))
    assert room.take(5001) == ("", room)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="cannot reserve room on a disk")
def test_a_disk_that_fills_up_costs_time_only(table, limits, monkeypatch):
    limits(0, 2**29)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.os, "pwrite", full)
    X, y = table
    source = Source("array", 6000, 3, (), X, y)
    found = Passes(source).then(tripled, bytes_a_row=32)
    (total,) = found.sum(lambda X, y: (X.sum(axis=0),))
    np.testing.assert_allclose(total, 3 * X.sum(axis=0))
    assert not found.keeps
    monkeypatch.setattr(cache.os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"The disk has no room.*set_cache"):
        Passes(source).then(tripled, bytes_a_row=32, joined=True).prepare()


FITS = {
    "regressor": lambda: PrivateKernelRegressor(
        epsilon=2.0, bounds=(-1, 1), y_bounds=(-2, 2), n_features=60, noise=SeededNoise(0)
    ),
    "quantiles": lambda: PrivateQuantileRegressor(
        epsilon=2.0, bounds=(-1, 1), y_bounds=(-2, 2), n_features=20, noise=SeededNoise(0)
    ),
    "classifier": lambda: PrivateKernelClassifier(
        epsilon=2.0, bounds=(-1, 1), classes=[0, 1], n_features=60, noise=SeededNoise(0)
    ),
    "sgd": lambda: PrivateSGDRegressor(
        epsilon=2.0, delta=1e-6, bounds=(-1, 1), y_bounds=(-2, 2), n_features=20,
        perturbation="gradient", max_iter=5, noise=SeededNoise(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FITS)
def test_a_fit_has_the_same_bits_wherever_its_features_are_kept(table, limits, name):
    X, y = table
    y = (y > 0).astype(int) if name == "classifier" else y
    found = []
    for memory, disk in PLACES.values():
        limits(memory, disk)
        found.append(FITS[name]().fit(X, y))
    for model in found[1:]:
        np.testing.assert_array_equal(model.coef_, found[0].coef_)
        np.testing.assert_array_equal(model.intercept_, found[0].intercept_)


def test_each_stage_reads_what_it_needs_once(table, limits, monkeypatch):
    """Features on disk: the rows are read once, however many passes the solver takes."""
    limits(0, 2**29)
    reads = []
    whole = Passes._read
    monkeypatch.setattr(Passes, "_read", lambda self: reads.append(1) or whole(self))
    FITS["regressor"]().fit(*table)
    assert len(reads) == 1


# --- settings -------------------------------------------------------------------------------------


def test_limits_come_from_the_caller_or_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "_limits", None)
    monkeypatch.setenv("DPKERNEL_MEMORY", "123")
    monkeypatch.setenv("DPKERNEL_SCRATCH", str(tmp_path))
    assert cache.cache_limits() == CacheLimits(123, None, str(tmp_path))
    monkeypatch.setenv("DPKERNEL_DISK", "ten")
    with pytest.raises(
        ParameterError, match=r"'disk' parameter of set_cache must be None or an int"
    ):
        cache.cache_limits()
    assert dpkernel.set_cache(7, folder=tmp_path) == cache.cache_limits()
    assert cache.cache_limits() == CacheLimits(7, None, str(tmp_path))
    for wrong in ({"memory": -1}, {"disk": 1.5}, {"folder": tmp_path / "none"}):
        with pytest.raises(ParameterError, match=f"'{next(iter(wrong))}' parameter of set_cache"):
            dpkernel.set_cache(**wrong)


def test_the_machine_is_asked_where_nothing_is_set(monkeypatch):
    monkeypatch.setattr(cache, "_limits", CacheLimits())
    monkeypatch.setattr(cache, "free_memory", lambda: 2**34)
    monkeypatch.setattr(cache, "free_disk", lambda folder: 2**40)
    assert Room.found() == Room(2**27, 2**39, 2**33)
    monkeypatch.setattr(cache, "free_memory", lambda: 2**20)
    assert Room.found() == Room(2**17, 2**39, 2**19)


def test_free_room_of_this_machine(tmp_path):
    assert 0 < cache.free_memory() < 2**50
    assert 0 < cache.free_disk(str(tmp_path)) < 2**60
    assert cache.free_disk(str(tmp_path / "none")) == 0
