"""The meaning of the names in a certificate, for readers who do not program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpkernel.outputs.report.markup import number

MECHANISMS: dict[str, str] = {
    "gaussian": "Normally distributed noise was added to every number.",
    "symmetric-gaussian": "Normally distributed noise was added to every entry of the table of sums.",
    "mixture-gaussian": "Normally distributed noise was added to every number; the order in which"
    " records were visited is secret and is part of the protection.",
    "sampled-gaussian": "Each step used a secret random part of the records, and normally distributed"
    " noise was added to what it computed.",
    "laplace": "Laplace-distributed noise was added to every number.",
    "l2-gamma": "A noise vector with a random direction and a random length was added to the numbers.",
    "functional-gaussian": "A random function was added to the fitted function.",
    "exponential": "A candidate was chosen at random, better ones with a higher probability.",
    "gaussian-mixing": "The records were mixed into random combinations, and normally distributed noise"
    " was added to each.",
    "objective-perturbation": "The model was fitted to a randomly disturbed problem, and normally"
    " distributed noise was added to its solution.",
    "pure-objective-perturbation": "The model was fitted to a randomly disturbed problem.",
    "random-stopping": "Candidates were tried a secret random number of times, and the one with the best"
    " noisy score was released.",
    "held-out-choice": "Candidates were trained privately on some rows. One was chosen at random by its"
    " error on other rows, better ones with a higher probability.",
}

SENSITIVITIES: dict[str, str] = {
    "declared": "a value stated by whoever made the release, without a formula",
    "declared-law": "values stated by whoever made the release, with the probability of each",
    "augmented-gram": "a record's products of features and target, which are clipped to public bounds",
    "unit-shares": "all rows of one person count once, in equal parts, in the cells of each column",
    "unit-gram": "the mean over all rows of a person of products that are clipped to public bounds",
    "record-norm": "the length of a record, which is clipped to public bounds",
    "loss-gradient": "the influence of one record on the solution, which is limited",
    "histogram": "one record is counted in one cell",
    "column-histograms": "one record is counted in one cell of each column",
    "column-moments": "a record's values and squares, clipped to public bounds",
    "bounded-sum": "a record's contribution to a sum, clipped to a public bound",
    "erm-lipschitz": "how far one record can move the solution, from a bound on the slope of the loss",
    "erm-bounded": "how far one record can move the solution, from a bound on the size of the loss",
    "erm-ridge": "how far one record can move the least-squares solution",
    "erm-prediction": "how far one record can move one value of the solution",
    "sgd-epochs": "how far one record can move the result of all steps, if each round uses it once",
    "sgd-sampled": "how far one record can move the result of all steps, if it is used at random",
    "sgd-shuffled": "how far one record can move the averaged result, if the order is secret",
}

NORMS = {
    "l2": "Euclidean distance",
    "l1": "sum of absolute changes",
    "score": "largest change of a score",
}

# for each name in the certificate: what to call it, and the names of its interval or deviation
STATISTIC_WORDS: dict[str, str] = {
    "training_mse": "mean squared error on the training data",
    "training_r2": "share of the variance explained on the training data (R²)",
    "held_out_mse": "mean squared error on held-out folds",
    "residual_scale": "standard deviation of the errors, in which the few largest ones hardly count",
    "regularisation": "regularisation that was chosen",
    "leading_features": "number of features that was chosen",
}

METRIC_WORDS: dict[str, str] = {
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "r2": "share of the variance explained (R²)",
    "pinball": "quantile (pinball) loss",
    "accuracy": "share of correct answers",
    "log_loss": "logarithmic loss",
    "auc": "area under the ROC curve",
}

PUBLIC: dict[str, str] = {
    "n_rows": "number of rows",
    "n_units": "number of people",
    "n_places": "declared number of places for records",
    "n_columns": "number of columns",
    "unit": "what counts as one record",
    "unit_record": "how the rows of a person become one record",
    "feature_map": "how columns become features",
    "folds": "division into folds",
    "integer_grid": "grid on which records are rounded",
    "record_scale": "scale of records",
    "budget_plan": "how the budget is shared",
    "regularisation": "regularisation",
    "steps": "steps of the pipeline",
    "weights": "weights of the steps",
    "budgets": "budget of each step (epsilon, delta)",
    "confidence": "confidence of the interval",
    "metric": "score",
    "ranges": "ranges of the columns",
    "cells": "epsilon of the fit itself, without the counts of cells",
}

# what some public values mean
VALUES: dict[str, dict[str, str]] = {
    "unit": {"group": "a person with all their rows", "row": "a row"},
    "unit_record": {
        "near": "the mean of one row and of the rows near it",
        "one": "one of the rows, which is picked by its content",
        "mean": "the mean of the rows",
        "mean loss": "all rows count, with the mean of their losses",
        "mean gradient": "all rows count, with the mean of their gradients",
    },
}


def factor(epsilon: float) -> str:
    """Return e^epsilon as a text."""
    return number(math.exp(epsilon), 3) if epsilon < 700 else "more than 10^300"


def parameters(sensitivity: Any) -> str:
    """Return the name of a formula with its parameters, as a certificate holds them."""
    found: Mapping[str, Any] = dict(sensitivity.parameters)
    inside = ", ".join(f"{name} = {number(value)}" for name, value in found.items())
    return f"{sensitivity.formula}({inside})" if inside else str(sensitivity.formula)
