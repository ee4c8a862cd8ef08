"""An audit of an honest and of a broken model.

The same attack is run on two copies of an estimator. One draws the noise that it claims. The other
one draws a tenth of it. The dashed line is the best that any attack may reach if the claim is
true. The curve of the honest copy scatters around chance; the curve of the broken copy lies far
above the dashed line.
"""

import matplotlib.pyplot as plt

from dpkernel import PrivateKernelRidge
from dpkernel.proof.audit import WeakNoise, audit

settings = {"kernel": "linear", "bounds": (-1, 1), "y_bounds": (-1, 1)}
copies = {
    "honest": PrivateKernelRidge(1.0, 1e-6, **settings),
    "a tenth of the noise": PrivateKernelRidge(1.0, 1e-6, **settings, noise=WeakNoise(0.1)),
}

figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
for (name, model), colour in zip(copies.items(), ("#0072b2", "#d55e00"), strict=True):
    report = audit(model, "across the box", trials=200, random_state=0, progress=False)
    seen = report.roc()
    axes.plot(seen.false_positive_rate, seen.true_positive_rate, color=colour, label=name)
axes.plot(seen.false_positive_rate, seen.true_positive_bound, "--", color="black")
axes.plot([], [], "--", color="black", label="allowed by the claim")
axes.set(xlabel="share of false alarms", ylabel="share of records found", aspect="equal")
axes.legend(loc="lower right", fontsize="small")
plt.show()
