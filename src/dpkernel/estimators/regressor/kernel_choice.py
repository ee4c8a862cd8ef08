r"""The choice of a kernel from released numbers, which costs no privacy.

The first fit releases coefficients u of a function f on orthonormal features v, with noise of known
variances D. If f is a Gaussian process with kernel sum_c theta_c k_c on the released law of the
inputs, then u is normal with covariance sum_c theta_c M_c + D, where M_c = E v(x) k_c(x, x')
v(x')^T is computed from a public sample. The theta_c of large likelihood show which kernels, at
which scales, describe the function; each theta_c is the variance that its kernel explains. They
start equal and climb for a few steps only, so that weak evidence changes them little.

The metric is the mean outer product of the gradients of the posterior mean over the released law,
less the part that is expected from noise, mixed with the identity according to the share of noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.features.learned import Component, LearnedFeatures, kernel_matrices

FIRST_COMPONENTS = (
    Component("linear", 1.0),
    Component("gaussian", 2.4),
    Component("gaussian", 1.2),
    Component("gaussian", 0.6),
    Component("laplace", 6.0),
    Component("laplace", 2.0),
)
LEARNED_COMPONENTS = (
    Component("gaussian", 1.2, metric=True),
    Component("gaussian", 0.6, metric=True),
    Component("gaussian", 0.3, metric=True),
    Component("laplace", 6.0, metric=True),
    Component("laplace", 2.0, metric=True),
)
FIRST_FEATURES = 200
SAMPLE = 1024  # points of the law on which kernels are compared
PRIOR_SIGNAL = 0.5  # the share of the variance of y that we assume functions of the inputs explain
_STEPS = 12
_GRADIENTS = 512  # points of the law at which gradients are taken
_DRAWS = 16  # draws of noise, to estimate its part in the gradients
_MOST_CHANGED, _FEWEST_CHANGED = (
    20_000,
    64,
)  # points at which the effects of the inputs are measured
_ONE_CELL = 0.9  # a column with at least this share in one cell counts as constant
_LEAST_BLEND = 0.1
_LEAST_SHARE = 0.03  # kernels with a smaller share of the variance are left out of the mixture


@dataclass(frozen=True)
class Released:
    """The coefficients that a first fit released: their features, values and noise variances."""

    places: IntArray
    values: Array
    noise: Array


@dataclass(frozen=True)
class KernelChoice:
    """What was learned about the kernel.

    Parameters
    ----------
    components : tuple of Component
        The kernels that were kept, with their factors.
    variances : tuple of floats
        The variance that each of them explains, as a share of the variance of y.
    metric : ndarray or None
        The metric of the inputs. None if the gradients are nothing but noise.
    relevance : ndarray
        The share of each column in how much the function changes.
    directions, strengths : ndarray
        The leading directions of the gradient, one per row, in units of the spread of the inputs,
        and their shares.
    prior : ndarray
        The prior variances of the coefficients of the first fit.
    bumps : float
        The variance along the mean function of the first kernels (``mean_function``).
    """

    components: tuple[Component, ...]
    variances: tuple[float, ...]
    metric: Array | None
    relevance: Array
    directions: Array
    strengths: Array
    prior: Array
    bumps: float


def choose_kernel(
    features: LearnedFeatures, released: Released, spread: float, sizes: Sequence[int]
) -> KernelChoice:
    """Return the kernel for the next fit.

    ``spread`` is the standard deviation of y, and ``sizes`` are the numbers of inputs per column.
    """
    sample = features.sample[:SAMPLE]
    functions = features.of_standardised(sample)
    total = spread**2
    first = [replace(c, weight=1.0) for c in features.mixture]
    own, traces = component_matrices(first, sample, functions, None)
    bump = _along_the_mean(features, functions)
    every = np.concatenate([own, bump])
    shares = _climb(every, released, total)
    metric, relevance, directions, strengths = _metric(features, every, shares, released, sizes)
    candidates = first
    if metric is not None:
        more, others = component_matrices(LEARNED_COMPONENTS, sample, functions, metric)
        candidates, every = [*first, *LEARNED_COMPONENTS], np.concatenate([own, more, bump])
        traces = np.concatenate([traces, others])
    shares = _climb(every, released, total)
    prior = np.einsum("c,cii->i", shares, every)[released.places]
    shares, bumps = shares[:-1], float(shares[-1])
    kept = np.flatnonzero(shares >= _LEAST_SHARE * shares.sum())
    rescale = shares.sum() / shares[kept].sum()
    mixture = [replace(candidates[c], weight=float(shares[c] * rescale / traces[c])) for c in kept]
    explained = [float(shares[c] * rescale / total) for c in kept]
    order = np.argsort(explained)[::-1]
    return KernelChoice(
        tuple(mixture[i] for i in order),
        tuple(explained[i] for i in order),
        metric,
        relevance,
        directions,
        strengths,
        prior,
        bumps,
    )


def component_matrices(
    components: Sequence[Component], sample: Array, functions: Array, metric: Array | None
) -> tuple[Array, Array]:
    """Return M_c of kernels scaled to variance 1 under the law, and the variances before scaling."""
    size = len(sample)
    matrices = np.empty((len(components), functions.shape[1], functions.shape[1]))
    traces = np.empty(len(components))
    centred = functions - functions.mean(axis=0)
    place = {id(component): c for c, component in enumerate(components)}
    for component, values in kernel_matrices(components, sample, sample, metric):
        c = place[id(component)]
        traces[c] = max(float(np.trace(values)) / size - float(values.mean()), 1e-12)
        matrices[c] = centred.T @ (values @ centred) / (size**2 * traces[c])
    return matrices, traces


def mixture_prior(features: LearnedFeatures, functions: Array, smoother: float = 1.0) -> Array:
    """Return the prior variances of coefficients for a function of variance 1 under the mixture.

    The kernels of ``features`` must have variance 1 each. ``functions`` are the values of the
    features on the first points of their sample. The variances are raised to the power
    ``smoother``, with the same sum.
    """
    size = len(functions)
    centred = functions - functions.mean(axis=0)
    found = np.einsum("nl,nl->l", centred, _on_the_sample(features, size) @ centred)
    prior = np.maximum(found / (size**2 * len(features.mixture)), 1e-30)
    tilted = prior**smoother
    return np.asarray(np.maximum(tilted * (prior.sum() / tilted.sum()), 1e-30))


def reweighted_prior(
    features: LearnedFeatures, functions: Array, released: Released, spread: float
) -> Array:
    """Return prior variances under the weights of the kernels that make ``released`` more likely.

    ``functions`` are the values of the features on the first points of their sample, and ``spread``
    is the standard deviation of what was fitted.
    """
    kernels = [replace(c, weight=1.0) for c in features.mixture]
    own, _ = component_matrices(kernels, features.sample[: len(functions)], functions, None)
    every, total = np.concatenate([own, _along_the_mean(features, functions)]), spread**2
    shares = _climb(every, released, total)
    return np.asarray(np.maximum(np.einsum("c,cii->i", shares, every), 1e-30))


def mean_function(features: LearnedFeatures, points: Array) -> Array:
    """Return the mean of the kernel over the law, at standardised points, with mean 0 and variance 1.

    A sum of bumps of one sign varies along this function, wherever the bumps are. The kernels
    themselves expect little of it, because they expect bumps of both signs.
    """
    return _standardised(features.kernel(points, features.sample[:SAMPLE]).mean(axis=1))


def with_bumps(prior: Array, features: LearnedFeatures, functions: Array) -> Array:
    """Return prior variances with a share for the mean function, and the same sum."""
    along = np.einsum("cii->i", _along_the_mean(features, functions))
    share = 1 / (len(features.mixture) + 1)
    return np.asarray((1 - share) * prior + share * prior.sum() * along)


def _along_the_mean(features: LearnedFeatures, functions: Array) -> Array:
    """Return the matrix M of the mean function, in a stack of one."""
    size = len(functions)
    found = functions.T @ _standardised(_on_the_sample(features, size).mean(axis=1)) / size
    found = found / max(float(np.linalg.norm(found)), 1e-300)
    return np.outer(found, found)[None]


@lru_cache(maxsize=1)
def _on_the_sample(features: LearnedFeatures, size: int) -> Array:
    """Return the kernel on the first points of the sample, which one fit needs three times."""
    return features.kernel(features.sample[:size], features.sample[:size])


def _standardised(values: Array) -> Array:
    values = values - values.mean()
    return np.asarray(values / max(float(values.std()), 1e-12))


def _climb(matrices: Array, released: Released, most: float) -> Array:
    """Return likely variances of the components, at most ``most`` in sum.

    All components start with the same variance. Each step multiplies theta_c by
    sqrt(a^T M_c a / tr(S^-1 M_c)), with a = S^-1 u. A step never lowers the likelihood.
    """
    own = matrices[:, released.places[:, None], released.places]
    flat, size = own.reshape(len(own), -1), len(released.values)
    shares = np.full(len(own), PRIOR_SIGNAL * most / len(own))
    for _ in range(_STEPS):
        covariance = (shares @ flat).reshape(size, size)
        covariance[np.diag_indices(size)] += released.noise
        inverse = np.linalg.inv(covariance)
        explained = inverse @ released.values
        found = flat @ np.outer(explained, explained).ravel()
        expected = flat @ inverse.ravel()
        shares = shares * np.sqrt(np.maximum(found, 1e-300) / np.maximum(expected, 1e-300))
        shares = shares * min(1.0, most / float(shares.sum()))
    return np.asarray(shares)


def _metric(
    features: LearnedFeatures,
    matrices: Array,
    shares: Array,
    released: Released,
    sizes: Sequence[int],
) -> tuple[Array | None, Array, Array, Array]:
    """Return the metric or None, the relevance of each column, leading directions and shares."""
    size = len(features.low)
    cross = np.einsum("c,cij->ij", shares, matrices[:, :, released.places])
    covariance = cross[released.places].copy()
    covariance[np.diag_indices_from(covariance)] += released.noise
    smoother = np.linalg.solve((covariance + covariance.T) / 2, cross.T).T
    normals = features.public_normals(len(released.noise), _DRAWS)
    draws = normals * np.sqrt(released.noise)[:, None]
    coefficients = smoother @ np.column_stack([released.values, draws])
    slopes = gradients(features, coefficients)
    points = slopes.shape[1]
    found = slopes[:, :, 0] @ slopes[:, :, 0].T / points
    noise = np.einsum("jns,kns->jk", slopes[:, :, 1:], slopes[:, :, 1:]) / (points * _DRAWS)
    values, vectors = np.linalg.eigh((found - noise + (found - noise).T) / 2)
    values = np.maximum(values, 0.0)
    total = float(values.sum())
    if not total > 1e-9 * float(np.trace(found)):
        equal = np.full(len(sizes), 1 / len(sizes))
        return None, equal, np.empty((0, size)), np.empty(0)
    blend = math.sqrt(max(0.0, 1 - total / float(np.trace(found))))
    blend = min(max(blend, _LEAST_BLEND), 1.0)
    stretched = (1 - blend) * values * (size / total) + blend
    metric = (vectors * np.sqrt(stretched)) @ vectors.T
    relevance = _relevance(features, coefficients, 1, sizes)
    leading = np.argsort(values)[::-1][: min(size, 5)]
    directions = vectors[:, leading].T
    largest = np.abs(directions).argmax(axis=1)
    directions = directions * np.sign(directions[np.arange(len(leading)), largest])[:, None]
    return metric, relevance, directions, values[leading] / total


def relevance_of(
    features: LearnedFeatures, coefficients: Array, noise: Array, sizes: Sequence[int]
) -> Array:
    """Return how much released functions depend on each column, as shares; see ``_relevance``.

    ``coefficients`` has one column per function. ``noise`` are the standard deviations of the noise
    in a column.
    """
    draws = features.public_normals(len(noise), _DRAWS) * noise[:, None]
    functions = np.column_stack([coefficients, draws])
    return _relevance(features, functions, coefficients.shape[1], sizes)


def _relevance(
    features: LearnedFeatures, coefficients: Array, count: int, sizes: Sequence[int]
) -> Array:
    """Return the effect of each column on the first ``count`` functions, as shares of their sum.

    The effect is the mean squared change of a function if the column takes the value that it has in
    another row. Unlike a gradient, it is meant for inputs of 0 and 1, too, between which there are no
    data. ``sizes`` are the numbers of inputs of the columns. The inputs of one column are the levels
    of a category, so they change together. The other functions are noise, and their mean effect is
    subtracted.
    """
    size = min(_GRADIENTS, max(_MOST_CHANGED // len(features.low), _FEWEST_CHANGED))
    groups = np.split(np.arange(len(features.low)), np.cumsum(sizes)[:-1])
    points = _one_hot(features, features.sample[:size], groups)
    # the sample is even, so its rows are not independent of each other before they are shuffled
    others = points[np.argsort(features.public_normals(size, 1)[:, 0])]
    before = features.of_standardised(points) @ coefficients
    # whether an input in one cell varies is unknown, and its effect would be extrapolated
    known = features.law.shares.max(axis=1) <= _ONE_CELL
    squares = np.empty((len(sizes), coefficients.shape[1]))
    for j, own in enumerate(groups):
        changed = points.copy()
        changed[:, own] = np.where(known[own], others[:, own], points[:, own])
        moved = features.of_standardised(changed) @ coefficients - before
        squares[j] = np.mean(moved**2, axis=0)
    found = squares[:, :count].mean(axis=1) - squares[:, count:].mean(axis=1)
    found = np.maximum(found, 0.0)
    return np.asarray(found / max(float(found.sum()), 1e-300))


def _one_hot(features: LearnedFeatures, points: Array, groups: Sequence[IntArray]) -> Array:
    """Return points in which exactly one input of every category is 1 and its others are 0."""
    law = features.law
    unit = points * law.spread + law.mean
    for own in groups:
        if len(own) > 1:
            unit[:, own] = np.argmax(unit[:, own], axis=1)[:, None] == np.arange(len(own))
    return law.standardise(unit)


def gradients(features: LearnedFeatures, coefficients: Array) -> Array:
    """Return the gradients (d, points, functions) of phi @ coefficients in standardised inputs.

    The features must be those of the first fit, which have no metric.
    """
    points, landmarks = features.sample[:_GRADIENTS], features.landmarks
    alpha = features.weights @ coefficients
    d, root = points.shape[1], math.sqrt(points.shape[1])
    radial = np.zeros((len(points), len(landmarks)))  # k' of Gaussian kernels, of x - landmark
    signed = np.zeros_like(radial)  # of Laplace kernels, of the sign of x - landmark
    linear = 0.0
    for component, values in kernel_matrices(features.mixture, points, landmarks, None):
        if component.family == "gaussian":
            radial -= values * (component.weight / (component.scale * root) ** 2)
        elif component.family == "laplace":
            signed -= values * (component.weight / (component.scale * root))
        else:
            linear += component.weight / d
    out = np.empty((d, len(points), coefficients.shape[1]))
    whole = radial @ alpha
    for j in range(d):
        moved = alpha * landmarks[:, j : j + 1]
        out[j] = points[:, j : j + 1] * whole - radial @ moved
        out[j] += (signed * np.sign(points[:, j : j + 1] - landmarks[:, j])) @ alpha
        out[j] += linear * moved.sum(axis=0)
    return out
