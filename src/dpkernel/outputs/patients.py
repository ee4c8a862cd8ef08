"""A made-up hospital: patients with their visits, for demonstrations.

No person is behind any row. The table looks like what a hospital has: people come more than once, old
and sick people more often; laboratory values are skewed, depend on each other and are sometimes missing
or below the limit of detection; one ward is rare. The length of a stay depends on all of it in ways
that are not linear, and more than half of its variance on nothing that is in the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

WARDS = ("surgery", "medicine", "oncology", "palliative")
ADMISSIONS = ("planned", "emergency")
HEADER = (
    *("patient", "visit", "age", "sex", "ward", "admission", "crp", "creatinine", "haemoglobin"),
    *("pressure", "earlier_stays", "days"),
)
# What a clinician would state without the data. `missing` is a normal value of a healthy adult.
BOUNDS = """\
ignore = ["patient", "visit"]

[columns.age]
low = 18
high = 100
missing = 60

[columns.sex]
levels = ["f", "m"]

[columns.ward]
levels = ["surgery", "medicine", "oncology", "palliative"]

[columns.admission]
levels = ["planned", "emergency"]

[columns.crp]           # mg/l
low = 0
high = 200
missing = 5
limits = true           # the laboratory writes <0.5 below its limit of detection
indicator = true

[columns.creatinine]    # mg/dl
low = 0.3
high = 5
missing = 0.9

[columns.haemoglobin]   # g/dl
low = 5
high = 20
missing = 14

[columns.pressure]      # mmHg
low = 80
high = 200
missing = 125

[columns.earlier_stays]
low = 0
high = 10
missing = 0

[target]
name = "days"
low = 0
high = 30
missing = 5
"""


def visits(n_patients: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield the visits of that many patients, in order of their ids, as cells of a file.

    Parameters
    ----------
    n_patients : int
        The number of patients. Each has at least one visit, and on average about 1.6.
    seed : int
        The seed of the random numbers. The same seed gives the same table.
    """
    draw = np.random.default_rng([seed, n_patients])
    for patient in range(n_patients):
        frail = draw.normal()  # what the visits of one person share
        age = float(np.clip(draw.normal(58 + 6 * frail, 17), 18, 99))
        sex = "m" if draw.random() < 0.48 else "f"
        count = 1 + int(draw.poisson(np.exp(-0.6 + 0.4 * frail + 0.01 * (age - 58))))
        for visit in range(count):
            yield _visit(draw, f"P{patient:06d}", visit, age, sex, frail)


def _visit(
    draw: np.random.Generator, patient: str, visit: int, age: float, sex: str, frail: float
) -> dict[str, str]:
    ward = WARDS[int(draw.choice(4, p=(0.42, 0.40, 0.17, 0.01)))]
    emergency = draw.random() < 1 / (1 + np.exp(0.3 - 0.6 * frail))
    crp = float(np.exp(draw.normal(1.4 + 0.5 * frail + 1.2 * emergency, 1.1)))
    creatinine = float(np.exp(draw.normal(-0.1 + 0.006 * (age - 58) + 0.15 * frail, 0.3)))
    haemoglobin = float(draw.normal(13.8 + 0.8 * (sex == "m") - 0.7 * frail, 1.4))
    pressure = float(draw.normal(128 + 0.25 * (age - 58), 16))
    expected = (
        2.0
        + 1.6 * np.log1p(crp / 4)
        + 0.0016 * (age - 40) ** 2
        + 1.2 * emergency * (ward == "medicine")
        + 2.5 * (ward == "oncology")
        + 4.0 * (ward == "palliative")
        + 1.5 * max(11.0 - haemoglobin, 0.0)
        + 2.0 * max(creatinine - 1.3, 0.0)
        + 0.8 * min(visit, 4)
    )
    days = float(draw.gamma(shape=max(expected, 0.5) / 1.3, scale=1.3))
    laboratory = {
        "crp": f"{crp:.1f}" if crp >= 0.5 else "<0.5",
        "creatinine": f"{creatinine:.2f}",
        "haemoglobin": f"{haemoglobin:.1f}",
        "pressure": f"{pressure:.0f}",
    }
    for name, share in (
        ("crp", 0.12),
        ("creatinine", 0.04),
        ("haemoglobin", 0.03),
        ("pressure", 0.02),
    ):
        if draw.random() < share:
            laboratory[name] = ""
    return {
        "patient": patient,
        "visit": str(visit + 1),
        "age": f"{age:.0f}",
        "sex": sex,
        "ward": ward,
        "admission": ADMISSIONS[int(emergency)],
        **laboratory,
        "earlier_stays": str(visit),
        "days": f"{days:.1f}",
    }
