"""What was released, in words that need no mathematics."""

from __future__ import annotations

# what is released, for each formula of the sensitivity
QUANTITIES: dict[str, str] = {
    "augmented-gram": "sums over all records of products of features and target",
    "unit-gram": "sums over all people of mean products of features and target",
    "unit-shares": "counts of people in cells, for every column",
    "record-norm": "random combinations of the records",
    "loss-gradient": "the model's coefficients, or a part of them",
    "histogram": "counts of records in cells",
    "column-histograms": "counts of records in cells, for every column",
    "column-moments": "sums of values and squares, for every column",
    "bounded-sum": "sums over all records of numbers within a public bound",
    "erm-lipschitz": "the model's coefficients",
    "erm-bounded": "the model's coefficients",
    "erm-ridge": "the model's coefficients",
    "erm-prediction": "values of the fitted function",
    "sgd-epochs": "the model's coefficients",
    "sgd-sampled": "the model's coefficients",
    "sgd-shuffled": "the model's coefficients",
}

# mechanisms whose noise scale and sensitivity are in the same units; for the last, of the gradient
RELATIVE = frozenset(
    {"gaussian", "symmetric-gaussian", "mixture-gaussian", "sampled-gaussian", "laplace"}
    | {"objective-perturbation"}
)
