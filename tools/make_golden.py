"""Compute the golden values of tests/golden.json with 100-digit arithmetic.

    python tools/make_golden.py            write the file
    python tools/make_golden.py --check    recompute, compare with the file, exit 1 on a difference

Nothing of dpkernel is imported: every value comes from its definition. Inputs are JSON numbers and
mean the float64 they are read as; values are decimal strings of 30 digits, rounded to nearest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mpmath import exp, log, mp, mpf, ncdf, nstr, sqrt

FILE = Path(__file__).resolve().parent.parent / "tests" / "golden.json"
DIGITS = 30
mp.dps = 100

Case = dict[str, Any]
Law = dict[int, mpf]


def text(value: mpf) -> str:
    return nstr(value, DIGITS, strip_zeros=False, min_fixed=1, max_fixed=0)


def hockey_stick(epsilon: mpf, mu: mpf) -> mpf:
    """Return G(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    if mu == 0:
        return max(mpf(0), 1 - exp(epsilon))
    return ncdf(mu / 2 - epsilon / mu) - exp(epsilon) * ncdf(-mu / 2 - epsilon / mu)


def root(rises_above: Callable[[mpf], bool], start: mpf) -> mpf:
    """Return the point where the predicate turns from false to true, to 75 digits."""
    low = high = start
    while rises_above(low):
        low /= 2
    while not rises_above(high):
        high *= 2
    while high - low > high * mpf(10) ** -75:
        middle = (low + high) / 2
        low, high = (low, middle) if rises_above(middle) else (middle, high)
    return low


def gaussian_mu(epsilon: mpf, delta: mpf) -> mpf:
    return root(lambda mu: hockey_stick(epsilon, mu) > delta, mpf(1))


def gaussian_epsilon(mu: mpf, delta: mpf) -> mpf:
    return root(lambda epsilon: hockey_stick(epsilon, mu) <= delta, mpf(1))


def binomial(trials: int, chance: mpf) -> Law:
    """Return the binomial law, cut where the rest is below 10^-60."""
    law, weight = {}, (1 - chance) ** trials
    for k in range(trials + 1):
        law[k] = weight
        if k > trials * chance and weight < mpf(10) ** -62:
            break
        weight *= chance * (trials - k) / ((1 - chance) * (k + 1))
    return law


def mixture(law: Law, sigma: mpf, epsilon: mpf) -> mpf:
    """Return E G(epsilon; K / sigma)."""
    return sum(weight * hockey_stick(epsilon, k / sigma) for k, weight in law.items())


def two_runs(law: Law, sigma: mpf, epsilon: mpf) -> mpf:
    """Return E G(epsilon; sqrt(K^2 + L^2) / sigma) for independent K and L."""
    squares: dict[int, mpf] = {}
    for k, first in law.items():
        for m, second in law.items():
            squares[k * k + m * m] = squares.get(k * k + m * m, mpf(0)) + first * second
    terms = (w * hockey_stick(epsilon, sqrt(q) / sigma) for q, w in squares.items() if w > 1e-60)
    return sum(terms, mpf(0))


# --- the sections of the file ---------------------------------------------------------------


def gaussian_delta_cases() -> Iterator[Case]:
    for mu in (1e-3, 0.05, 0.3, 0.5, 1.0, 2.0, 5.0, 12.0):
        for size in (1e-4, 0.01, 0.1, 0.3, 1.0, 4.0, 8.0, 30.0):
            for epsilon in (-size, size):
                if size / mu < 20:  # beyond, the positive side is out of any use
                    yield {"epsilon": epsilon, "mu": mu}
        yield {"epsilon": 0.0, "mu": mu}
    for epsilon in (-2.0, -0.1):
        yield {"epsilon": epsilon, "mu": 0.0}
    for epsilon, mu in ((1e3, 40.0), (1e4, 135.0), (-1e3, 40.0)):
        yield {"epsilon": epsilon, "mu": mu}


def far_tail_cases() -> Iterator[Case]:
    for epsilon in (1e-9, 1e-6, 1e-3, 1.0, 4.0):
        for ratio in (26.0, 30.0, 34.0, 36.5):
            yield {"epsilon": epsilon, "mu": epsilon / ratio}


def gaussian_mu_cases() -> Iterator[Case]:
    for epsilon in (1e-4, 1e-3, 0.01, 0.1, 1.0, 4.0, 8.0, 100.0, 1e3, 1e4):
        for delta in (1e-2, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12, 1e-16, 1e-20):
            yield {"epsilon": epsilon, "delta": delta}


def composition_cases() -> Iterator[Case]:
    for mu in (0.05, 0.2367, 1.0):
        for delta in (1e-3, 1e-6, 1e-12):
            yield {"mu": mu, "copies": 10, "delta": delta}


def calibrated_cases() -> Iterator[Case]:
    yield {"epsilon": 1.0, "delta": 1e-6, "copies": 10}


def mixture_cases() -> Iterator[Case]:
    for epsilon in (-1.0, 0.0, 0.5, 1.0, 2.0):
        for runs in (1, 2):
            law = {"trials": 10_000, "chance": 1e-4, "sigma": 16.0}
            yield {**law, "runs": runs, "epsilon": epsilon}


def mixture_sigma_cases() -> Iterator[Case]:
    for trials, chance, delta in ((1_000, 1e-3, 1e-5), (10_000, 1e-4, 1e-6), (50_000, 1e-4, 1e-6)):
        yield {"trials": trials, "chance": chance, "epsilon": 1.0, "delta": delta}


def response_cases() -> Iterator[Case]:
    for own in (1e-5, 0.01, 0.1, 0.7, 1.0, 3.0, 20.0):
        for share in (-1.5, -1.0, -0.9, -0.3, 0.0, 0.2, 0.6, 0.99, 1.0, 1.5):
            yield {"own": own, "epsilon": share * own}


def response_renyi_cases() -> Iterator[Case]:
    for own in (1e-6, 1e-4, 0.01, 0.1, 1.0, 5.0, 40.0):
        for order in (1.01, 1.1, 1.5, 2.0, 8.0, 64.0, 1e3):
            yield {"own": own, "order": order}


def pmf_cases() -> Iterator[Case]:
    for scale in (2.1, 5.3, 40.0):
        yield {"scale": scale}


def gaussian_delta_value(case: Case) -> str:
    return text(hockey_stick(mpf(case["epsilon"]), mpf(case["mu"])))


def gaussian_mu_value(case: Case) -> str:
    return text(gaussian_mu(mpf(case["epsilon"]), mpf(case["delta"])))


def composition_value(case: Case) -> str:
    return text(gaussian_epsilon(mpf(case["mu"]) * sqrt(case["copies"]), mpf(case["delta"])))


def calibrated_value(case: Case) -> str:
    delta = mpf(case["delta"])
    mu = gaussian_mu(mpf(case["epsilon"]), delta)
    return text(gaussian_epsilon(mu * sqrt(case["copies"]), delta))


def mixture_value(case: Case) -> str:
    law = binomial(case["trials"], mpf(case["chance"]))
    runs = {1: mixture, 2: two_runs}[case["runs"]]
    return text(runs(law, mpf(case["sigma"]), mpf(case["epsilon"])))


def mixture_sigma_value(case: Case) -> str:
    law = binomial(case["trials"], mpf(case["chance"]))
    epsilon, delta = mpf(case["epsilon"]), mpf(case["delta"])
    return text(root(lambda sigma: mixture(law, sigma, epsilon) <= delta, mpf(16)))


def response_value(case: Case) -> str:
    """Return the hockey-stick divergence of randomised response, both sides equal."""
    own, epsilon = mpf(case["own"]), mpf(case["epsilon"])
    truth, lie = 1 / (1 + exp(-own)), 1 / (1 + exp(own))
    pairs = ((truth, lie), (lie, truth))
    total = sum(max(mpf(0), p - exp(epsilon) * q) for p, q in pairs)
    return text(total) if total > mpf(10) ** -80 else "0"  # below the working precision


def response_renyi_value(case: Case) -> str:
    own, order = mpf(case["own"]), mpf(case["order"])
    truth, lie = 1 / (1 + exp(-own)), 1 / (1 + exp(own))
    moment = truth**order * lie ** (1 - order) + lie**order * truth ** (1 - order)
    return text(log(moment) / (order - 1))


def pmf_value(case: Case) -> list[str]:
    """Return P(y), y = 0, 1, ..., 9 scale, of P(y) proportional to exp(-y^2 / (2 scale^2))."""
    scale = mpf(case["scale"])
    weights = [exp(-(y**2) / (2 * scale**2)) for y in range(int(25 * scale) + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    return [text(weight / total) for weight in weights[: int(9 * scale) + 1]]


SECTIONS: dict[str, tuple[Callable[[], Iterator[Case]], Callable[[Case], Any]]] = {
    "gaussian_delta": (gaussian_delta_cases, gaussian_delta_value),
    "gaussian_delta_far_tail": (far_tail_cases, gaussian_delta_value),
    "gaussian_mu": (gaussian_mu_cases, gaussian_mu_value),
    "gaussian_composition": (composition_cases, composition_value),
    "gaussian_calibrated_composition": (calibrated_cases, calibrated_value),
    "binomial_mixture": (mixture_cases, mixture_value),
    "binomial_mixture_sigma": (mixture_sigma_cases, mixture_sigma_value),
    "randomised_response": (response_cases, response_value),
    "randomised_response_renyi": (response_renyi_cases, response_renyi_value),
    "discrete_gaussian_pmf": (pmf_cases, pmf_value),
}


def section(name: str) -> list[Case]:
    cases, value = SECTIONS[name]
    print(f"computing {name} ...", end=" ", flush=True)
    found = [{**case, "value": value(case)} for case in cases()]
    print(f"{len(found)} cases")
    return found


def differences(name: str, fresh: list[Case], stored: list[Case]) -> list[str]:
    if len(fresh) != len(stored):
        return [f"{name}: {len(fresh)} cases computed, {len(stored)} in the file"]
    pairs = enumerate(zip(fresh, stored, strict=True))
    return [f"{name}[{i}]: computed {new}, file {old}" for i, (new, old) in pairs if new != old]


def check(fresh: dict[str, list[Case]]) -> int:
    print(f"comparing with {FILE.name}")
    stored = json.loads(FILE.read_text())
    found = [f"{name}: not computed any more" for name in stored if name not in fresh]
    for name, cases in fresh.items():
        found += differences(name, cases, stored.get(name, []))
    for line in found:
        print("DIFFERENT", line)
    total = sum(map(len, fresh.values()))
    print(f"{len(found)} differences" if found else f"all {total} cases agree to the last digit")
    return 1 if found else 0


def dump(fresh: dict[str, list[Case]]) -> str:
    """Return JSON with one case a line."""
    blocks = []
    for name, cases in fresh.items():
        lines = ",\n".join(f"  {json.dumps(case)}" for case in cases)
        blocks.append(f" {json.dumps(name)}: [\n{lines}\n ]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    checking = parser.parse_args().check
    fresh = {name: section(name) for name in SECTIONS}
    if checking:
        return check(fresh)
    FILE.write_text(dump(fresh))
    print(f"wrote {FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
