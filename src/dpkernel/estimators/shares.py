"""How a fit shared its budget among its releases, from its certificate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpkernel.privacy.certificate import Certificate


def budget_shares(certificate: Certificate) -> list[dict[str, Any]]:
    """Return one row per release: its share of the budget, its mu, and its epsilon by itself.

    Gaussian releases compose by adding mu^2, so a share is that of the sum of mu^2; the mu of other
    releases is their sensitivity divided by the scale of their noise. For pure epsilon, a share is
    that of the sum of epsilon.
    """
    rows, delta, pure = [], certificate.delta, certificate.delta == 0
    for release in certificate.releases:
        mechanism = release.mechanism
        alone = mechanism.profile().epsilon(0.0 if pure else min(max(delta, 1e-12), 0.5))
        mu = mechanism.sensitivity.value / mechanism.noise_scale * math.sqrt(release.draws)
        cost = release.draws * alone if pure else mu**2
        rows.append({"release": release.title, "mu": mu, "epsilon_alone": alone, "share": cost})
    total = math.fsum(row["share"] for row in rows)
    return [{**row, "share": row["share"] / total} for row in rows]


def plot_shares(rows: list[dict[str, Any]], certificate: Certificate, path: Path) -> None:
    """Plot the shares to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    labels = [row["release"] for row in rows][::-1]
    shares = [row["share"] for row in rows][::-1]
    bars = axes.barh(labels, shares, color="#0b5fa5")
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3)
    axes.set(xlabel="share of the budget", xlim=(0, 1.15 * max(shares)))
    axes.set_title(f"epsilon = {certificate.epsilon:.3g}, delta = {certificate.delta:.3g}")
    figure.savefig(path, dpi=130)
