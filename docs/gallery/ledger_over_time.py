"""A ledger over time.

Twelve counts are released from the same table, one after the other. The plain sum of their
epsilons grows with every release. The ledger adds up the noise and not the claims, so it charges
less and admits more of them under the same ceiling.
"""

import matplotlib.pyplot as plt

from dpkernel import Budget, Ledger, mechanisms

ledger = Ledger(budget=Budget(2.0, 1e-6))
count = mechanisms.Gaussian.calibrate(1.0, Budget(0.4, 1e-6), dimension=1)
charged, plain = [0.0], [0.0]
for release in range(12):
    ledger.spend(count.profile(), f"count {release + 1}")
    charged.append(ledger.spent.epsilon)
    plain.append(ledger.naive.epsilon)

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.step(range(13), plain, where="post", color="#999999", label="plain sum of all epsilons")
axes.step(range(13), charged, where="post", color="#0072b2", label="charged by the ledger")
axes.axhline(2.0, color="#d55e00", linestyle="--", label="ceiling")
axes.set(
    xlabel="number of releases", ylabel="epsilon at delta = 1e-6", xlim=(0, 12.5), ylim=(0, None)
)
axes.legend(loc="upper left")
plt.show()
