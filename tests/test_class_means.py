"""Many classes from the noisy means of all classes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpkernel import BlockStream, PrivateKernelClassifier, load, save
from dpkernel.privacy.noise import SeededNoise

TEN = {"classes": list(range(10)), "bounds": (0, 16)}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order[:1400]], y[order[:1400]], X[order[1400:]], y[order[1400:]]


def lines(model: PrivateKernelClassifier) -> list[str]:
    return [release.label for release in model.certificate_.releases]


def test_ten_digits_are_told_apart_at_epsilon_one(digits):
    X, y, new, wanted = digits
    model = PrivateKernelClassifier(1.0, **TEN, noise=SeededNoise(0)).fit(X, y)
    assert lines(model) == ["centre", "class sums"] and 0.99 < model.certificate_.epsilon <= 1
    assert np.mean(model.predict(new) != wanted) < 0.25  # 0.33 with one problem per class
    chances = model.predict_proba(new)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(chances.argmax(axis=1), model.predict(new))


def test_the_noise_does_not_grow_with_the_number_of_classes():
    X = np.random.default_rng(0).uniform(-1, 1, (300, 4))
    scales = []
    for size in (5, 50):
        given = {"classes": list(range(size)), "bounds": (-1, 1)}
        model = PrivateKernelClassifier(0.1, **given).fit(X, np.arange(300) % size)
        scales.append(model.certificate_.releases[1].mechanism.noise_scale)
    assert scales[0] == scales[1]


@pytest.mark.parametrize(
    ("epsilon", "options"),
    [
        (100.0, {}),  # enough signal for one problem per class
        (1.0, {"kernel": "gaussian"}),
        (1.0, {"loss": "logistic"}),
        (1.0, {"class_weight": {0: 0.5}}),
        (1.0, {"solver": "output"}),
        (1.0, {"n_features": 20}),
    ],
)
def test_other_choices_solve_one_problem_per_class(digits, epsilon, options):
    model = PrivateKernelClassifier(epsilon, **TEN, **options).fit(digits[0][:300], digits[1][:300])
    assert "class sums" not in lines(model)


def test_four_classes_solve_one_problem_each():
    X = np.random.default_rng(0).uniform(-1, 1, (100, 3))
    model = PrivateKernelClassifier(1.0, classes=[0, 1, 2, 3], bounds=(-1, 1))
    assert "class sums" not in lines(model.fit(X, np.arange(100) % 4))


def test_a_stream_and_a_file_give_the_same_model(digits, tmp_path):
    X, y, new, _ = digits
    model = PrivateKernelClassifier(1.0, **TEN, noise=SeededNoise(0)).fit(X, y)
    stream = BlockStream(
        lambda: ((X[i : i + 300], y[i : i + 300]) for i in range(0, 1400, 300)), 1400
    )
    same = PrivateKernelClassifier(1.0, **TEN, noise=SeededNoise(0)).fit(stream)
    np.testing.assert_array_equal(same.coef_, model.coef_)  # sums of integers are exact
    save(model, tmp_path / "digits.dpk")
    again = load(tmp_path / "digits.dpk")
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))


def test_a_class_without_rows_and_a_constant_table_are_harmless():
    X = np.zeros((40, 3))
    model = PrivateKernelClassifier(1.0, classes=list("abcdef"), bounds=(-1, 1))
    model.fit(X, np.array(["a"] * 40))
    assert np.isfinite(model.predict_proba(X)).all() and np.isfinite(model.coef_).all()
