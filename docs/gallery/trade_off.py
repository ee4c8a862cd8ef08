"""What the best attack can do.

An attacker who knows all other records wants to tell whether a certain record is in the table.
Every attack misses some records and raises some false alarms. Each line is the best that any
attack on the release can reach; the region below it is impossible. The certificate of every model
has such a line.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import Budget, mechanisms

alarms = np.linspace(0, 1, 401)
figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.plot(alarms, 1 - alarms, ":", color="black", label="blind guessing")
for epsilon in (0.3, 1.0, 3.0, 10.0):
    release = mechanisms.Gaussian.calibrate(1.0, Budget(epsilon, 1e-6), dimension=1)
    axes.plot(alarms, release.profile().trade_off(alarms), label=f"epsilon = {epsilon:g}")
axes.set(xlabel="share of false alarms", ylabel="share of missed records", aspect="equal")
axes.set(xlim=(0, 1), ylim=(0, 1))
axes.legend(loc="upper right", fontsize="small")
plt.show()
