"""A fit that learns its kernel: a first fit, a choice based on its release, then the main fits.

1. Histograms of the columns and moments of their scores give the law of the inputs.
2. The first stage fits a mixture of kernels of several families and scales.
3. Its release determines the kernel of the later stages and their metric (``kernel_choice.py``).
4. The first fit is carried over to the new features, and the later stages fit its residuals.

With less data, noisy moments give the law of the inputs, and all stages fit the same mixture. The
first stage then changes the weights of its kernels only. With hardly any data, one stage fits the
mixture for inputs that fill the box, and starts from the declared range of y.

The number of releases and the noise of each are fixed in advance, from public numbers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpkernel.estimators.records import RecordPasses
from dpkernel.estimators.regressor import inputs, location, scale
from dpkernel.estimators.regressor.fitting import Fitting
from dpkernel.estimators.regressor.kernel_choice import (
    FIRST_COMPONENTS,
    FIRST_FEATURES,
    PRIOR_SIGNAL,
    SAMPLE,
    Released,
    choose_kernel,
    component_matrices,
    mean_function,
    mixture_prior,
    reweighted_prior,
    with_bumps,
)
from dpkernel.estimators.regressor.stage import PosteriorStage, State, clipped_residuals
from dpkernel.foundations.types import Array
from dpkernel.models.features import FeatureMap
from dpkernel.models.features.input_law import InputLaw, uniform_law
from dpkernel.models.features.learned import Component, LearnedFeatures, law_sample
from dpkernel.privacy.noise import Noise

_CARRIED_SAMPLE = 1024  # the fewest points of the law on which the first fit is carried over
_SMOOTHER = 1.25  # functions are smoother than the mixture: the power of its prior variances
_DOUBT = 0.1  # the share of the prior variance that is added to the uncertainty after the first fit


class LearnedFitting(Fitting):
    """Everything public about a fit on features for a released law, and how to run it."""

    def _states(self, noise: Noise) -> tuple[FeatureMap, list[State]]:
        """Draw every release; return the features and the final state of the target."""
        plan = self.plan
        assert plan is not None
        law = self._input_law(noise)
        centre, spread = self._first_location(noise)
        with self._part("features"):
            first, functions, state = self._start(law, centre, spread)
        if not plan.learns:
            rows = self._rows(first, None)
            if plan.starts_in_public:
                return first, [self._single_stage(functions, state, rows, noise)]
            state = self._mixture_stage(first, functions, state, rows, noise)
            return first, [self._later_stages(2, state, functions, rows, noise)]
        released = self._first_fit(first, functions, state, noise)
        with self._part("kernel"):
            features, rotation, state = self._learn(first, released, spread)
        rows = self._rows(features, rotation)
        sample = features.of_standardised(features.sample[:SAMPLE])
        state = self._measured(state, "scale 1", rows, 0, noise, scale.ROOT_MEAN_SQUARE)
        functions = with_constant(sample @ rotation)
        state = self._later_stages(2, state, functions, rows, noise)
        return features, [_rotated_back(state, rotation)]

    def _first_location(self, noise: Noise) -> tuple[float, float]:
        """Return where y lies and how far it spreads, from a noisy histogram or from its range."""
        plan = self.plan
        assert plan is not None
        if not plan.location > 0:
            return 0.0, location.PUBLIC_SPREAD
        with self._part("location"):
            (counts,) = self._passes.sum(location.count_targets, 0)
            mechanism = self._mechanism("location", 0)
            noisy = mechanism.release(counts, noise)
        n = self._released(float(noisy.sum()))
        self._size = self._size if plan.learns else n  # histograms of columns know it better
        self._skewness = location.skewness(noisy, n, mechanism.noise_scale)
        fit = location.fit_either if plan.learns else location.fit_public
        return fit(noisy, n, mechanism.noise_scale)

    def _later_stages(
        self, first: int, state: State, functions: Array, rows: RecordPasses, noise: Noise
    ) -> State:
        """Return the state after the stages from number ``first`` on, and the calibration."""
        plan = self.plan
        assert plan is not None
        for number in range(first, len(plan.stages) + 1):
            with self._part(f"stage {number}"):
                stage = self._stage(number, state, functions)
                beta = self._solved(stage, f"stage {number}", rows, noise)
            # a mixture was weighted after its first stage; to refit it again follows noise
            state = stage.update(beta, refit=plan.learns)
            measure = scale.ROOT_MEAN_SQUARE if plan.learns else scale.LIKELY
            state = self._measured(state, f"scale {number}", rows, 0, noise, measure)
        if plan.calibration > 0:
            # with little data, what the noise may move is what the skewness of y explains
            given = () if plan.learns else (scale.NEAR_REACH, self._skewness)
            with self._part("calibration"):
                state = self._calibrated(state, rows, 0, noise, *given)
        return state

    def _input_law(self, noise: Noise) -> InputLaw:
        """Return the law of the inputs, from noisy histograms or from noisy moments, if bought."""
        assert self.plan is not None
        if self._layout is None:
            return uniform_law(self._sizes.n_inputs)
        if self.plan.learns:
            law, size = inputs.release_law(
                self._passes, self._layout, self.mechanisms, noise, self._part
            )
            self._size = self._released(size)
            return law
        with self._part("inputs"):
            (total,) = self._passes.sum(inputs.sum_moments, self._layout)
            mechanism = self.mechanisms["inputs"]
            noisy = mechanism.release(total, noise)
            size = self._released(self._layout.read(noisy).count)
            return inputs.law_of_moments(self._layout, noisy, size, mechanism.noise_scale)

    def _start(
        self, law: InputLaw, centre: float, spread: float
    ) -> tuple[LearnedFeatures, Array, State]:
        """Return features of a mixture of kernels, their values on a sample, and what is known."""
        assert self.plan is not None
        most = FIRST_FEATURES if self.plan.learns else self._sizes.n_features
        size = min(most, self._sizes.n_features)
        # a first fit that chooses the kernel has to see rough functions, too
        power = 1.0 if self.plan.learns else _SMOOTHER
        if self._layout is None:
            features, functions, prior = box_mixture(len(law.low), size, self._seed, power)
            features = deepcopy(features)  # the model keeps it, and others use the same
        else:
            features, functions, prior = law_mixture(law, size, self._seed, power)
        prior = PRIOR_SIGNAL * spread**2 * prior
        variances = np.concatenate([[spread**2 / 3], prior])
        coefficients = np.zeros(len(variances))
        coefficients[0] = centre
        return features, with_constant(functions), State(coefficients, variances, spread)

    def _first_fit(
        self, features: LearnedFeatures, functions: Array, state: State, noise: Noise
    ) -> Released:
        """Return the coefficients that the first stage released."""
        with self._part("stage 1"):
            stage = self._stage(1, state, functions)
            rows = self._rows(features, None)
            beta = self._solved(stage, "stage 1", rows, noise)
        found, constant = stage.found(beta), stage.used == 0
        centre, unknown = float(state.coefficients[0]), float(state.variances[0])
        if constant.any():
            share = unknown / (unknown + stage.noise[0])
            centre += share * float(found[0])
            unknown = float(share * stage.noise[0])
        self._constant = centre, unknown
        return _released(stage, beta)

    def _single_stage(
        self, functions: Array, state: State, rows: RecordPasses, noise: Noise
    ) -> State:
        """Return what is known after the only stage, on features that know nothing of the data."""
        with self._part("stage 1"):
            stage = self._stage(1, state, functions, any_law=True)
            return stage.update_as_solved(self._solved(stage, "stage 1", rows, noise))

    def _mixture_stage(
        self,
        features: LearnedFeatures,
        functions: Array,
        state: State,
        rows: RecordPasses,
        noise: Noise,
    ) -> State:
        """Return what is known after the first stage, which also reweights the kernels."""
        with self._part("stage 1"):
            stage = self._stage(1, state, functions)
            beta = self._solved(stage, "stage 1", rows, noise)
        prior = reweighted_prior(features, functions[:, 1:], _released(stage, beta), state.scale)
        variances = np.concatenate([state.variances[:1], prior])
        stage = replace(stage, state=replace(state, variances=variances))
        return self._measured(
            stage.update(beta, refit=False), "scale 1", rows, 0, noise, scale.LIKELY
        )

    def _learn(
        self, first: LearnedFeatures, released: Released, spread: float
    ) -> tuple[LearnedFeatures, Array, State]:
        """Return the features of the later stages, a rotation of them, and what is known by now.

        The rotated features have independent coefficients under the posterior law after the first
        fit. The function that is carried over is the first fit, shrunk by the chosen prior.
        """
        self.choice = choice = choose_kernel(
            first, released, spread, inputs.column_sizes(self._domain)
        )
        size, kernels = self._sizes.n_features, choice.components
        features = of_law(first.law, size, kernels, self._seed, choice.metric)
        sample = features.sample[: max(_CARRIED_SAMPLE, 2 * features.n_outputs)]
        size = len(sample)
        new, old = (
            features.of_standardised(sample),
            first.of_standardised(sample)[:, released.places],
        )
        kernel = features.kernel(sample, sample)
        means = kernel.mean(axis=0)
        kernel -= means + means[:, None] - means.mean()
        along = mean_function(first, sample)
        kernel += choice.bumps * np.outer(along, along)
        prior = new.T @ (kernel @ new) / size**2
        own = kernel @ old
        cross, known = new.T @ own / size**2, old.T @ own / size**2
        known[np.diag_indices_from(known)] += released.noise
        left = prior - cross @ np.linalg.solve((known + known.T) / 2, cross.T) + _DOUBT * prior
        values, rotation = np.linalg.eigh((left + left.T) / 2)
        values, rotation = values[::-1], rotation[:, ::-1]
        shrunk = choice.prior / (choice.prior + released.noise) * released.values
        gram = new.T @ new / size
        gram[np.diag_indices_from(gram)] += 1e-6  # there may be more features than points
        carried = np.linalg.solve(gram, new.T @ (old @ shrunk) / size)
        centre, unknown = self._constant
        variances = np.concatenate([[unknown], np.maximum(values, 1e-12 * max(values[0], 1e-30))])
        coefficients = np.concatenate([[centre], rotation.T @ carried])
        return features, rotation, State(coefficients, variances, spread)

    def _stage(
        self, number: int, state: State, functions: Array, *, any_law: bool = False
    ) -> PosteriorStage:
        assert self.plan is not None
        total, most = float(state.variances[1:].sum()), state.scale**2
        if total > most:  # no more signal can be left than there is variance left in y
            variances = state.variances.copy()
            variances[1:] *= most / total
            state = replace(state, variances=variances)
        mechanism = self._mechanism(f"stage {number}", 0)
        response = clipped_residuals(state, self.plan.clip)
        return PosteriorStage.choose(
            state, self._size, response, mechanism, functions, any_law=any_law
        )

    def _solved(self, stage: PosteriorStage, label: str, rows: RecordPasses, noise: Noise) -> Array:
        mechanism = self._mechanism(label, 0)
        found: Array = mechanism.release(self._solver(stage, rows, 0, mechanism), noise)
        return found

    def _rows(self, features: LearnedFeatures, rotation: Array | None) -> RecordPasses:
        return self._passes.featured(features, self._dtype, 16, rotation)


def of_law(
    law: InputLaw, size: int, mixture: Any, seed: int, metric: Array | None = None
) -> LearnedFeatures:
    """Return features of a mixture of kernels for a released law."""
    found: LearnedFeatures = LearnedFeatures(
        size,
        low=law.low.tolist(),
        high=law.high.tolist(),
        shares=law.shares.tolist(),
        correlation=law.correlation.tolist(),
        components=list(mixture),
        metric=None if metric is None else metric.tolist(),
        random_state=seed,
    ).build(len(law.low))
    return found


def law_mixture(
    law: InputLaw, size: int, seed: int, power: float
) -> tuple[LearnedFeatures, Array, Array]:
    """Return features of the kernels of a first fit, their values on a sample, and their prior."""
    features = of_law(law, size, equal_mixture(law, seed), seed)
    functions = features.of_standardised(features.sample[:SAMPLE])
    prior = mixture_prior(features, functions, power)
    return features, functions, with_bumps(prior, features, functions)


@lru_cache(maxsize=4)
def box_mixture(
    n_inputs: int, size: int, seed: int, power: float
) -> tuple[LearnedFeatures, Array, Array]:
    """Return the same for inputs that fill the box, kept because further fits need it again."""
    return law_mixture(uniform_law(n_inputs), size, seed, power)


def equal_mixture(law: InputLaw, seed: int) -> list[Component]:
    """Return the kernels of the first fit, each with variance 1 under the law."""
    sample = law_sample(law, SAMPLE, seed)
    _, traces = component_matrices(FIRST_COMPONENTS, sample, np.ones((SAMPLE, 1)), None)
    return [replace(c, weight=1 / float(t)) for c, t in zip(FIRST_COMPONENTS, traces, strict=True)]


def _released(stage: PosteriorStage, beta: Array) -> Released:
    """Return the coefficients of the features that a stage released, without the constant."""
    kept = stage.used > 0
    return Released(stage.used[kept] - 1, stage.found(beta)[kept], stage.noise[kept])


def _rotated_back(state: State, rotation: Array) -> State:
    """Return the state on the features themselves, with only the diagonal of the covariance."""
    coefficients = np.concatenate([state.coefficients[:1], rotation @ state.coefficients[1:]])
    variances = np.concatenate([state.variances[:1], rotation**2 @ state.variances[1:]])
    return replace(state, coefficients=coefficients, variances=variances)


def with_constant(functions: Array) -> Array:
    """Return the values of (1, v)."""
    return np.column_stack([np.ones(len(functions)), functions])
