"""Columns with words in them.

A data frame with a number and two columns of words. `Levels` declares the possible words, which
are public; a word that was not declared counts as none of them. The picture shows what the private
model predicts for each ward, next to the truth.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dpkernel import Domain, Interval, Levels, PrivateKernelRegressor

rng = np.random.default_rng(0)
wards = ("surgery", "medicine", "oncology")
table = pd.DataFrame(
    {
        "age": rng.uniform(18, 90, 5000),
        "ward": rng.choice(wards, 5000),
        "admission": rng.choice(("planned", "emergency"), 5000),
    }
)


def truth(frame):
    per_year = frame["ward"].map({"surgery": 0.02, "medicine": 0.08, "oncology": 0.05})
    return 3 + per_year * (frame["age"] - 18) + 2.0 * (frame["admission"] == "emergency")


days = truth(table) + rng.normal(size=5000)
domain = Domain(
    (Interval(18, 90), Levels(wards), Levels(("planned", "emergency"))), names=tuple(table)
)
model = PrivateKernelRegressor(epsilon=1.0, bounds=domain, y_bounds=(0, 30)).fit(table, days)

figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for ward, colour in zip(wards, ("#0072b2", "#d55e00", "#009e73"), strict=True):
    line = pd.DataFrame({"age": np.linspace(18, 90, 50), "ward": ward, "admission": "planned"})
    axes.plot(line["age"], model.predict(line), color=colour, label=ward)
    axes.plot(line["age"], truth(line), ":", color=colour)
axes.plot([], [], ":", color="black", label="truth")
axes.set(xlabel="age (years)", ylabel="days in hospital, planned stay")
axes.legend(loc="upper left", fontsize="small")
plt.show()
