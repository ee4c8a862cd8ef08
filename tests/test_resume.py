"""A fit that is interrupted at any release goes on for what was paid: one spend, no second draw.

An attacker may copy the resume file and let it go on several times. What they see must be what one
run shows.
"""

from __future__ import annotations

import json
import os
import shutil
import stat

import numpy as np
import pandas as pd
import pytest

from dpkernel import (
    BlockStream,
    Budget,
    Ledger,
    OpenDPNoise,
    People,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.estimators.cell_counts import CellCounts
from dpkernel.estimators.resuming import table_fingerprint
from dpkernel.estimators.sgd.fits import OutputFit
from dpkernel.foundations.errors import LedgerError, NoiseError, ParameterError, ResumeError
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import PrivateSGDClassifier, PrivateSGDRegressor, PrivateSketchedRidge
from dpkernel.privacy import ledger_file, samplers
from dpkernel.privacy import resume as module
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import NoiseSource, ResumableNoise
from dpkernel.privacy.resume import ResumeFile
from replay import make_quick

N = 700
REAL = {"epsilon": 2.0, "delta": 1e-6, "bounds": (-1, 1), "y_bounds": (-2, 2)}
LABELS = {"epsilon": 2.0, "delta": 1e-6, "bounds": (-1, 1), "classes": [0, 1, 2]}

FITS = {
    "ridge": lambda **o: PrivateKernelRidge(**REAL, n_features=8, **o),
    "ridge, folds": lambda **o: PrivateKernelRidge(**REAL, n_features=8, folds=2, **o),
    "sketch": lambda **o: PrivateSketchedRidge(
        **REAL, n_features=8, accept=("idealised-arithmetic",), **o
    ),
    "regressor": lambda **o: PrivateKernelRegressor(**REAL, n_features=12, **o),
    "quantiles": lambda **o: PrivateQuantileRegressor(
        **REAL, quantile=[0.2, 0.8], n_features=6, **o
    ),
    "pure": lambda **o: PrivateQuantileRegressor(
        **{**REAL, "delta": 0.0}, n_features=6, accept=("idealised-arithmetic",), **o
    ),
    "classifier": lambda **o: PrivateKernelClassifier(**LABELS, n_features=10, **o),
    "classifier, own kernel": lambda **o: PrivateKernelClassifier(
        **LABELS, n_features=10, kernel="gaussian", **o
    ),
    "sgd": lambda **o: PrivateSGDRegressor(**REAL, n_features=6, max_iter=3, **o),
    "sgd, batches": lambda **o: PrivateSGDClassifier(
        **LABELS, n_features=6, batch_size=300, max_iter=1, **o
    ),
    "sgd, output": lambda **o: PrivateSGDRegressor(
        **REAL, n_features=6, perturbation="output", sampling="replacement", max_iter=1, **o
    ),
}


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (N, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.resume"


def target_of(name, y):
    return np.digitize(y, [-0.3, 0.3]) if "classifier" in name or "batches" in name else y


class Stopped(BaseException):
    """Stands for a signal that ends the process."""


def stop_at(patch, release, moment):
    """Stop the fit at a release: before it is drawn, before it is written, or half-way through."""
    whole, seen = ResumeFile._append, []

    def append(self, line):
        seen.append(1)
        if len(seen) <= release:
            return whole(self, line)
        if moment == "half-written":
            os.lseek(self._file, 0, os.SEEK_END)
            os.write(self._file, json.dumps(line).encode()[:70])
        if moment == "before the next key":
            patch.setattr(ResumeFile, "_write_state", lambda self: None)
            whole(self, line)
        raise Stopped

    patch.setattr(ResumeFile, "_append", append)


def begun(build, table, path, monkeypatch, release=0, moment="before it is written"):
    """Return a ledger with the spend of a fit that was stopped."""
    ledger = Ledger(budget=Budget(2.0, 1e-6))
    with monkeypatch.context() as patch:
        stop_at(patch, release, moment)
        with pytest.raises(Stopped):
            build(ledger=ledger).fit(*table, resume=path)
    assert len(ledger.spends) == 1
    return ledger


def same(one, other):
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    assert one.certificate_.releases == other.certificate_.releases


@pytest.mark.parametrize("name", FITS)
def test_a_fit_goes_on_from_every_release_with_one_spend(table, path, monkeypatch, name):
    make_quick(monkeypatch)
    X, y = table[0], target_of(name, table[1])
    build = FITS[name]
    ledger = begun(build, (X, y), path, monkeypatch)
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    whole = build(ledger=ledger).fit(X, y, resume=copy)  # never interrupted again
    whole.certificate_.verify()
    assert whole.certificate_.private
    count = sum(r.draws * r.folds for r in whole.certificate_.releases)
    moments = ("before it is written", "half-written", "before the next key")
    for release in range(count):
        with monkeypatch.context() as patch:
            stop_at(patch, 0, moments[release % 3])
            with pytest.raises(Stopped):
                build(ledger=ledger).fit(X, y, resume=path)
        if moments[release % 3] != moments[2]:  # let this release through, then stop at the next
            if release == count - 1:
                break
            with monkeypatch.context() as patch:
                stop_at(patch, 1, moments[0])
                with pytest.raises(Stopped):
                    build(ledger=ledger).fit(X, y, resume=path)
    found = build(ledger=ledger).fit(X, y, resume=path)
    same(found, whole)
    (spend,) = ledger.spends
    assert spend.state == "drawn"


def test_copies_show_nothing_that_one_run_does_not_show(table, path, monkeypatch):
    """The noise of what is still to be drawn is fixed: the same bits come from every copy."""
    build = FITS["regressor"]
    ledger = begun(build, table, path, monkeypatch, release=2)
    found = []
    for name in ("one", "two", "three"):
        shutil.copy(path, path.with_name(name))
        found.append(build(ledger=ledger).fit(*table, resume=path.with_name(name)))
    same(found[1], found[0])
    same(found[2], found[0])


def test_two_fits_have_different_noise(table, path):
    build = FITS["ridge"]
    models = [build().fit(*table, resume=path.with_name(name)) for name in ("one", "two")]
    assert not np.array_equal(models[0].coef_, models[1].coef_)


def test_what_was_released_is_never_drawn_again(table, path, monkeypatch):
    build, ledger = FITS["regressor"], Ledger()
    model = build(ledger=ledger).fit(*table, resume=path)
    for name in ("discrete_gaussian", "l2_gamma", "permutation"):
        monkeypatch.setattr(samplers, name, lambda *_, **__: pytest.fail("noise was drawn again"))
    same(build(ledger=ledger).fit(*table, resume=path), model)
    assert len(ledger.spends) == 1


def test_nothing_is_drawn_outside_a_release(path):
    file = ResumeFile(path, {"estimator": "one"})
    mechanism = Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    noise = Ledger().spend(mechanism.profile(), "mean", noise=file.source)
    with pytest.raises(NoiseError, match="draws noise for its releases only"):
        noise.claim(mechanism.profile()).words(1)
    noise = Ledger().spend(mechanism.profile(), "mean", noise=file.source)
    mechanism.release([3.0], noise)
    with pytest.raises(NoiseError, match="draws noise for its releases only"):
        file.source.discrete_gaussian(2.0, 3)
    file.close()


# --- neighbours: the same noise must never meet another value ---------------------------------------


def changed_row(X, y):
    X = X.copy()
    X[N - 1, 2] = np.nextafter(X[N - 1, 2], 2)
    return X, y


def changed_target(X, y):
    return X, np.where(np.arange(N) == 5, -y, y)


def longer(X, y):
    return np.vstack([X, X[:1]]), np.append(y, y[0])


def exchanged(X, y):
    order = np.arange(N)
    order[[3, 4]] = 4, 3
    return X[order], y[order]


def in_other_blocks(X, y):
    return BlockStream(lambda: iter([(X[:300], y[:300]), (X[300:], y[300:])]), n_rows=N), None


@pytest.mark.parametrize(
    "change", [changed_row, changed_target, longer, exchanged, in_other_blocks]
)
def test_another_table_is_refused_before_anything_is_drawn(table, path, monkeypatch, change):
    ledger = begun(FITS["regressor"], table, path, monkeypatch, release=1)
    before = path.read_bytes(), ledger.spends
    monkeypatch.setattr(
        NoiseSource, "discrete_gaussian", lambda *_: pytest.fail("noise met another table")
    )
    with pytest.raises(ResumeError, match=r"another table.*Nothing was drawn.*Delete the file"):
        FITS["regressor"](ledger=ledger).fit(*change(*table), resume=path)
    assert (path.read_bytes(), ledger.spends) == before


@pytest.mark.parametrize(
    "changes",
    [{"y_bounds": (-2, 2.5)}, {"epsilon": 1.9}, {"random_state": 3}, {"n_features": 11},
     {"bounds": (-1, 1.5)}, {"kernel": "gaussian"}],
)  # fmt: skip
def test_other_parameters_are_refused(table, path, monkeypatch, changes):
    ledger = begun(FITS["regressor"], table, path, monkeypatch, release=1)
    model = FITS["regressor"](ledger=ledger).set_params(**changes)
    with pytest.raises(ResumeError, match=f"another '{next(iter(changes))}'. Nothing was drawn"):
        model.fit(*table, resume=path)


def test_another_estimator_plan_or_ledger_is_refused(table, path, monkeypatch):
    ledger = begun(FITS["regressor"], table, path, monkeypatch, release=1)
    with pytest.raises(ResumeError, match="another 'estimator'"):
        FITS["ridge"](ledger=ledger).fit(*table, resume=path)
    with pytest.raises(ResumeError, match="begun with a ledger"):
        FITS["regressor"]().fit(*table, resume=path)
    for other in (Ledger(), Ledger(budget=Budget(9.0, 1e-5))):
        with pytest.raises(LedgerError, match="no spend 1 for these releases.*Nothing was drawn"):
            FITS["regressor"](ledger=other).fit(*table, resume=path)
    other = Ledger()
    FITS["ridge"](ledger=other).fit(*table)
    with pytest.raises(LedgerError, match="no spend 1 for these releases"):
        FITS["regressor"](ledger=other).fit(*table, resume=path)
    with monkeypatch.context() as patch:  # the same parameters, but another way to plan
        patch.setattr("dpkernel.estimators.regressor.budget_plan._LEAST_MIXTURE", 1e9)
        with pytest.raises(ResumeError, match="planned other releases"):
            FITS["regressor"](ledger=ledger).fit(*table, resume=path)


def test_a_spend_that_another_fit_has_made_in_an_older_copy_is_refused(table, path, monkeypatch):
    """An older copy of the ledger loses the spend of a fit, and an equal fit takes its number."""
    build, file = FITS["ridge"], path.with_name("ledger.db")

    def ledger():  # as in another process, which has not seen the spend
        monkeypatch.setattr(ledger_file, "_KNOWN", {})
        monkeypatch.setattr(ledger_file, "_LAST", {})
        return Ledger(file, dataset="study", budget=Budget(2.0, 1e-6))

    ledger()
    older = file.read_bytes()
    with monkeypatch.context() as patch:
        stop_at(patch, 0, "before it is written")
        with pytest.raises(Stopped):
            build(ledger=ledger()).fit(*table, resume=path)
    newest = file.read_bytes()
    file.write_bytes(older)
    build(ledger=ledger()).fit(*table)
    with pytest.raises(LedgerError, match=r"no spend 1 for these releases.*Nothing was drawn"):
        build(ledger=ledger()).fit(*table, resume=path)
    file.write_bytes(newest)
    build(ledger=ledger()).fit(*table, resume=path).certificate_.verify()


def test_a_fit_without_a_ledger_goes_on_without_one(table, path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 1, "before it is written")
        with pytest.raises(Stopped):
            FITS["regressor"]().fit(*table, resume=path)
    with pytest.raises(ResumeError, match="begun without a ledger"):
        FITS["regressor"](ledger=Ledger()).fit(*table, resume=path)
    FITS["regressor"]().fit(*table, resume=path).certificate_.verify()


def test_other_software_or_threads_are_refused(table, path, monkeypatch):
    ledger = begun(FITS["regressor"], table, path, monkeypatch, release=1)
    here = module.environment()
    for name in here:
        monkeypatch.setattr(module, "environment", lambda name=name: {**here, name: "another"})
        with pytest.raises(ResumeError, match=f"begun with {name} .*Nothing was drawn"):
            FITS["regressor"](ledger=ledger).fit(*table, resume=path)


def test_counts_beside_a_fit_belong_to_its_table(table, path, monkeypatch):
    """The exact counts are no part of the encoded rows, but they get noise of the same file."""
    ledger, counts = Ledger(), np.array([[N - 9, 9, 0, 0]] * 3)

    def fit(counts):
        cells = CellCounts(["a", "b", "c"], counts)
        return FITS["ridge"](ledger=ledger)._fit_beside(*table, cells, resume=path)

    with monkeypatch.context() as patch:
        stop_at(patch, 1, "before it is written")
        with pytest.raises(Stopped):
            fit(counts)
    with pytest.raises(ResumeError, match="another table"):
        fit(counts + np.array([-1, 1, 0, 0]))
    assert "cells" in fit(counts).certificate_.free_statistics and len(ledger.spends) == 1


def test_people_keep_their_secret_order(table, path, monkeypatch):
    X, y = table
    groups = People(np.arange(N) // 2, "one")
    build, ledger = FITS["ridge, folds"], Ledger()
    with monkeypatch.context() as patch:
        stop_at(patch, 1, "before it is written")
        with pytest.raises(Stopped):
            build(ledger=ledger).fit(X, y, groups=groups, resume=path)
    other = People(np.roll(np.arange(N) // 2, 1), "one")
    with pytest.raises(ResumeError, match="another table"):
        build(ledger=ledger).fit(X, y, groups=other, resume=path)
    build(ledger=ledger).fit(X, y, groups=groups, resume=path).certificate_.verify()
    assert len(ledger.spends) == 1


def test_gradients_of_all_rows_of_a_person_go_on_with_the_same_rows(table, path, monkeypatch):
    X, y = table
    people = People(np.arange(N) // 3, "all")
    build, ledger = FITS["sgd"], Ledger()
    with monkeypatch.context() as patch:
        stop_at(patch, 1, "before it is written")
        with pytest.raises(Stopped):
            build(ledger=ledger).fit(X, y, groups=people, resume=path)
    changed = X.copy()
    changed[1::3] *= 0.5  # rows that are not the first of their person
    with pytest.raises(ResumeError, match="another table"):
        build(ledger=ledger).fit(changed, y, groups=people, resume=path)
    build(ledger=ledger).fit(X, y, groups=people, resume=path)
    assert len(ledger.spends) == 1


def test_other_names_of_columns_are_another_table(table, path, monkeypatch):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    bounds = {"a": (-1, 1), "b": (-2, 2), "c": (-1, 1)}

    def build(**options):
        return FITS["ridge"](**options).set_params(bounds=bounds)

    ledger = begun(build, (frame, y), path, monkeypatch)
    with pytest.raises(ResumeError, match="another table"):
        build(ledger=ledger).fit(frame.set_axis(["b", "a", "c"], axis=1), y, resume=path)


def test_another_schedule_is_another_plan(table, path, monkeypatch):
    X, y = table
    stream = BlockStream(lambda: [(X, y)], N)

    def build(**options):
        return PrivateSGDRegressor(**REAL, n_features=6, perturbation="output", **options)

    ledger = begun(build, (stream,), path, monkeypatch)
    scheme = OutputFit.scheme
    monkeypatch.setattr(OutputFit, "scheme", lambda self: {**scheme(self), "sampling": "fixed"})
    with pytest.raises(ResumeError, match="planned other releases"):
        build(ledger=ledger).fit(stream, resume=path)


# --- the file ---------------------------------------------------------------------------------------


def test_the_file_never_has_a_key_whose_noise_was_released(table, path, monkeypatch):
    keys = []
    start = ResumableNoise.start
    monkeypatch.setattr(
        ResumableNoise, "start", lambda self, key: keys.append(key) or start(self, key)
    )
    known = []
    monkeypatch.setattr(
        "dpkernel.estimators.resuming.table_fingerprint",
        lambda table, key: known.append(key) or table_fingerprint(table, key),
    )
    groups = People(np.arange(N) // 2, "one")
    first = FITS["regressor"]().fit(*table, groups=groups, resume=path)
    content = path.read_bytes()
    assert len(keys) > 4 and len(set(keys)) == len(keys) and len(known) == 1
    assert not any(key.hex().encode() in content or key in content for key in [*keys, *known])
    # the file gives back what was released, and nothing more can be drawn
    monkeypatch.setattr(NoiseSource, "discrete_gaussian", lambda *_: pytest.fail("drawn again"))
    again = FITS["regressor"]().fit(0 * table[0], table[1], groups=groups, resume=path)
    np.testing.assert_array_equal(again.coef_, first.coef_)


def test_only_a_file_that_paid_gets_the_noise_of_a_spend(path):
    ledger = Ledger()
    profile = Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1).profile()
    ledger.spend(profile, "mean")
    other = ResumeFile(path, {}, None)
    for paid in (None, 2):
        other._header["spend"] = paid
        with pytest.raises(LedgerError, match="no spend 1"):
            ledger._resume(1, profile, "mean", noise=other.source)
    other.close()


def test_only_its_owner_may_read_the_file(table, path, monkeypatch):
    old = os.umask(0)
    try:
        ledger = begun(FITS["ridge"], table, path, monkeypatch)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(ResumeError, match="Others may read 'fit.resume'"):
        FITS["ridge"](ledger=ledger).fit(*table, resume=path)
    path.chmod(0o600)
    path.with_name("link").symlink_to(path)
    with pytest.raises(ResumeError, match="can't be opened"):
        FITS["ridge"](ledger=ledger).fit(*table, resume=path.with_name("link"))


def test_two_fits_cannot_use_the_file_at_once(table, path):
    pytest.importorskip("fcntl")

    def rows():
        with pytest.raises(ResumeError, match="Another fit is using"):
            FITS["ridge"]().fit(*table, resume=path)
        yield table

    FITS["ridge"]().fit(BlockStream(rows, n_rows=N), resume=path)


def test_a_fit_that_was_never_paid_for_starts_anew(table, path):
    ledger = Ledger(budget=Budget(0.1, 1e-6))
    with pytest.raises(LedgerError):
        FITS["ridge"](ledger=ledger).fit(*table, resume=path)
    model = FITS["ridge"](ledger=ledger).set_params(epsilon=0.1)
    model.fit(*changed_row(*table), resume=path)
    assert len(ledger.spends) == 1


def test_damaged_and_foreign_files_are_refused(table, path, monkeypatch):
    path.write_text("my notes")
    path.chmod(0o600)
    with pytest.raises(ResumeError, match="is not a resume file"):
        FITS["ridge"]().fit(*table, resume=path)
    assert path.read_text() == "my notes"
    path.unlink()
    ledger = begun(FITS["regressor"], table, path, monkeypatch, release=3)
    content = path.read_bytes()
    lines = content[module._HEADER + module._STATE :].splitlines(keepends=True)
    for place in (content.index(b'"key": "') + 9, content.index(b'"order": "') + 11):
        other = b"0" if content[place : place + 1] != b"0" else b"1"
        path.write_bytes(content[:place] + other + content[place + 1 :])  # it would draw anew
        with pytest.raises(ResumeError, match="is damaged"):
            FITS["regressor"](ledger=ledger).fit(*table, resume=path)
    for kept in ([*lines[:1], *lines[2:]], [lines[0], lines[1].replace(b"A", b"B", 1), lines[2]]):
        path.write_bytes(content[: module._HEADER + module._STATE] + b"".join(kept))
        with pytest.raises(ResumeError, match="is damaged"):
            FITS["regressor"](ledger=ledger).fit(*table, resume=path)
    path.write_bytes(
        content[: module._HEADER + module._STATE] + b"".join([lines[1], lines[0], lines[2]])
    )
    with pytest.raises(ResumeError, match="has another release here"):
        FITS["regressor"](ledger=ledger).fit(*table, resume=path)


def test_arguments_that_cannot_be_resumed(table, path):
    with pytest.raises(
        ParameterError, match="'resume' parameter of fit must be the path of a file"
    ):
        FITS["ridge"]().fit(*table, resume=7)
    with pytest.raises(ParameterError, match="read only once"):
        FITS["ridge"]().fit(BlockStream(iter([table]), n_rows=N), resume=path)
    with pytest.raises(ResumeError, match="can't be opened"):
        FITS["ridge"]().fit(*table, resume=path / "none")
    with pytest.raises(NoiseError, match="can't be made by hand"):
        ResumableNoise(object(), None, False)
    with pytest.raises(LedgerError, match="no spend 1"):
        ledger = Ledger()
        mechanism = Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
        ledger.spend(mechanism.profile(), "mean")
        ledger._resume(1, mechanism.profile(), "mean", noise=SeededNoise(0))


def test_seeded_noise_stays_not_private(table, path, monkeypatch):
    build = FITS["regressor"]
    with monkeypatch.context() as patch:
        stop_at(patch, 2, "before it is written")
        with pytest.raises(Stopped):
            build(noise=SeededNoise(4)).fit(*table, resume=path)
    with pytest.raises(ResumeError, match="another 'noise'"):
        build(noise=SeededNoise(5)).fit(*table, resume=path)
    with pytest.raises(ResumeError, match="another 'noise'"):
        build().fit(*table, resume=path)
    found = build(noise=SeededNoise(4)).fit(*table, resume=path)
    assert not found.certificate_.private
    again = build(noise=SeededNoise(4)).fit(*table, resume=path.with_name("again"))
    same(again, found)


def test_sources_of_other_libraries_are_refused(table, path):
    pytest.importorskip("opendp")
    with pytest.raises(ParameterError, match="None or a SeededNoise in a fit with 'resume'"):
        FITS["ridge"](noise=OpenDPNoise()).fit(*table, resume=path)


def test_every_relation(table, path, monkeypatch):
    for relation in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE):
        file = path.with_name(relation.value)
        ledger = Ledger(neighbours=relation)
        with monkeypatch.context() as patch:
            stop_at(patch, 0, "before it is written")
            with pytest.raises(Stopped):
                FITS["ridge"](ledger=ledger, neighbours=relation).fit(*table, resume=file)
        model = FITS["ridge"](ledger=ledger, neighbours=relation).fit(*table, resume=file)
        assert model.certificate_.neighbours is relation and len(ledger.spends) == 1
