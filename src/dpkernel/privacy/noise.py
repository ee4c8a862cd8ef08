"""Where noise comes from, and the only object that may draw it.

A source says how words become noise: ``SystemNoise`` (the default), ``SeededNoise`` (tests and
reproductions, never private) or ``OpenDPNoise`` (OpenDP's exact sampler, extra ``[exact]``).
A ``Noise`` is the right to draw what one recorded spend paid for. Only a ledger makes one; every
mechanism needs one; each part of the spend can be released as often as it was paid for and no more,
and only in the process that paid. This guards against mistakes, not against a curator who writes
code to get around it: whoever has the data needs no noise to leak them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.foundations.entropy import (
    KeyedEntropy,
    SeededEntropy,
    SystemEntropy,
    WordSource,
    this_process,
)
from dpkernel.foundations.errors import NoiseError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, IntArray, Neighbours, is_whole
from dpkernel.privacy import samplers
from dpkernel.privacy.profiles import ApproximateProfile, GaussianProfile, PrivacyProfile, compose

MOST_DRAWS = 1_000_000
FREE = GaussianProfile(0.0)  # the profile of draws of which nothing is released


class NoiseSource:
    """Discrete noise from a source of random words."""

    def __init__(self, entropy: WordSource) -> None:
        self._entropy = entropy

    @property
    def private(self) -> bool:
        """Whether the noise can't be predicted or repeated: only of the sources of this module."""
        return is_private(self)

    @property
    def generator(self) -> str:
        """The generator's name, for the certificate."""
        return generator_of(self)

    sampler = "exact bucket sampler"

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Gaussians of this parameter."""
        return samplers.discrete_gaussian(scale, size, self._entropy)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Laplace variables of this parameter."""
        return samplers.discrete_laplace(scale, size, self._entropy)

    def categorical(self, utilities: Array, rate: float) -> int:
        """Draw an index with probability proportional to exp(rate * utility)."""
        return samplers.categorical(utilities, rate, self._entropy)

    def l2_gamma(self, dimension: int, scale: float) -> Array:
        """Draw a vector with density proportional to exp(-norm / scale)."""
        return samplers.l2_gamma(dimension, scale, self._entropy)

    def uniform_indices(self, n: int, count: int) -> IntArray:
        """Draw independent uniform indices below n."""
        return samplers.uniform_indices(n, count, self._entropy)

    def permutation(self, n: int) -> IntArray:
        """Draw a uniform permutation of 0 .. n - 1."""
        return samplers.permutation(n, self._entropy)

    def subset(self, n: int, size: int) -> IntArray:
        """Draw a uniform subset of 0 .. n - 1 of this size, in increasing order."""
        return samplers.subset(n, size, self._entropy)

    def poisson_subset(self, n: int, rate: float) -> IntArray:
        """Draw each of 0 .. n - 1 independently, with this probability or 2^-64 less."""
        return samplers.poisson_subset(n, rate, self._entropy)

    def standard_normals(self, count: int) -> Array:
        """Draw independent standard normals, in float arithmetic."""
        return self.normals_of(self.words(count))

    def normals_of(self, words: np.ndarray) -> Array:
        """Return one normal a word: what takes time, and may be done in another thread."""
        return samplers.normals_of(words)

    def words(self, count: int) -> np.ndarray:
        """Draw uniform 64-bit words (folds need them)."""
        return self._entropy.words(count)


class SystemNoise(NoiseSource):
    """Noise from the operating system's cryptographic generator. The default."""

    def __init__(self) -> None:
        super().__init__(SystemEntropy())

    def __repr__(self) -> str:
        return "SystemNoise()"


class SeededNoise(NoiseSource):
    """Repeatable noise for tests and reproductions.

    Whatever it touches has a certificate that says ``private: false``: whoever knows the seed
    can subtract the noise.

    Parameters
    ----------
    seed : int
        Two sources with one seed give the same noise. Every fit starts the stream again.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ParameterError(parameter_message("SeededNoise", "seed", "an int >= 0", seed))
        super().__init__(SeededEntropy(int(seed)))
        self.seed = int(seed)

    def restarted(self) -> SeededNoise:
        """Return a new source at the start of the stream."""
        return SeededNoise(self.seed)

    def __reduce__(self) -> tuple[type[SeededNoise], tuple[int]]:
        return SeededNoise, (self.seed,)

    def __repr__(self) -> str:
        return f"SeededNoise({self.seed})"


class OpenDPNoise(SystemNoise):
    """Integer noise from OpenDP's exact samplers (``pip install dpkernel[exact]``).

    About 200 times slower than the default, which is exact as well; for those whose rules name
    OpenDP. Selection and pure l2 noise, which OpenDP does not have in this form, stay ours.
    """

    sampler = "OpenDP"

    def __init__(self) -> None:
        super().__init__()
        _opendp()

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Gaussians of this parameter."""
        return self._draw("make_gaussian", "l2_distance", scale, size)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Laplace variables of this parameter."""
        return self._draw("make_laplace", "l1_distance", scale, size)

    def _draw(self, maker: str, metric: str, scale: float, size: int) -> IntArray:
        prelude = _opendp()
        domain = prelude.vector_domain(prelude.atom_domain(T=prelude.i64))
        space = domain, getattr(prelude, metric)(T=prelude.i64)
        measurement = getattr(prelude.m, maker)(*space, scale=scale)
        return np.asarray(measurement([0] * size), dtype=np.int64)

    def __repr__(self) -> str:
        return "OpenDPNoise()"


def is_private(source: NoiseSource) -> bool:
    """Whether a source is one of the library's that draw from the operating system.

    Asked of the source's type and not of the source: a class of the user's own may say anything.
    """
    fresh = type(getattr(source, "_entropy", None)) is SystemEntropy
    return fresh and type(source) in (SystemNoise, OpenDPNoise)


def generator_of(source: NoiseSource) -> str:
    """Return the name of the generator behind a source, "unknown" for one of the user's own."""
    entropy = getattr(source, "_entropy", None)
    if is_private(source):
        return "OpenDP and os.urandom" if type(source) is OpenDPNoise else SystemEntropy.generator
    return entropy.generator if isinstance(entropy, (SeededEntropy, KeyedEntropy)) else "unknown"


@dataclass(frozen=True)
class Part:
    """One line of a plan: a release with its profile, drawn ``draws`` times.

    With ``folds`` above 1 it is drawn that often on each of so many disjoint sets of rows. Which
    rows form a set follows from their positions, so neighbours with a public number of rows differ
    in one set only: the noise may be drawn draws * folds times, and the profile counts ``draws``.
    Whoever states folds answers for them being disjoint; a ledger refuses them under add-remove,
    where a removed row moves all later ones.

    A part with the profile ``FREE`` pays for words that are not released by themselves and have one
    law whatever the data are, such as the order of a stochastic method's rows. It costs nothing and
    no certificate lists it.
    """

    label: str
    profile: PrivacyProfile
    draws: int = 1
    folds: int = 1

    def __post_init__(self) -> None:
        for name in ("draws", "folds"):
            count = getattr(self, name)
            if not is_whole(count) or not 1 <= count <= MOST_DRAWS:
                allowed = f"an int from 1 to {MOST_DRAWS}"
                raise ParameterError(parameter_message("Part", name, allowed, count))

    @property
    def free(self) -> bool:
        """Whether nothing is released of what this part draws."""
        return self.profile == FREE


@dataclass(frozen=True)
class Plan:
    """Everything one fit is going to release, fixed before its first draw.

    ``nothing_proved`` charges everything, for published algorithms whose claim has no proof and for
    audits.
    """

    parts: tuple[Part, ...]
    nothing_proved: bool = False

    def __post_init__(self) -> None:
        labels = [part.label for part in self.parts]
        if not labels or len(set(labels)) != len(labels):
            raise ParameterError(
                parameter_message(
                    "Plan", "parts", "one or more parts with different labels", labels
                )
            )

    @property
    def profile(self) -> PrivacyProfile:
        """The privacy profile of the whole plan: by default the composition of its parts.

        Folds do not enter: a record is in one of them.
        """
        if self.nothing_proved:
            return ApproximateProfile(0.0, 1.0)
        return compose([p.profile.repeat(p.draws) for p in self.parts if not p.free])

    @classmethod
    def joined(cls, plans: Mapping[str, Plan]) -> Plan:
        """Return the plan of several steps, with parts labelled "step: part"."""
        parts = tuple(
            replace(part, label=f"{name}: {part.label}")
            for name, plan in plans.items()
            for part in plan.parts
        )
        return cls(parts, any(plan.nothing_proved for plan in plans.values()))

    @classmethod
    def of(cls, what: Plan | PrivacyProfile, label: str) -> Plan:
        """Return the plan itself, or a plan with this one profile."""
        return what if isinstance(what, Plan) else cls((Part(label, what),))

    def to_dict(self) -> JSON:
        """Return the parts as JSON values."""
        return {
            "parts": [
                {
                    "label": p.label,
                    "profile": p.profile.to_dict(),
                    "draws": int(p.draws),
                    "folds": int(p.folds),
                }
                for p in self.parts
            ],
            "profile": self.profile.to_dict(),
        }


TRUSTED_SOURCES = {  # the sampler that goes with a generator
    "os.urandom": SystemNoise.sampler,
    "OpenDP and os.urandom": OpenDPNoise.sampler,
}
_MINT = object()  # handed to ledger.py: nobody else makes a Noise


class Noise:
    """The right to draw the noise of one recorded spend. Made by ``ledger.spend`` only."""

    def __init__(
        self,
        mint: object,
        source: NoiseSource,
        plan: Plan,
        neighbours: Neighbours,
        on_draw: Callable[[str, object], None],
        ledger_part: str | None = None,
    ) -> None:
        if mint is not _MINT:
            raise NoiseError(
                "A Noise can't be made by hand. Call ledger.spend(profile, label): it records the"
                " spend and returns the noise that the spend paid for."
            )
        self._source = source
        self.plan = plan
        self.neighbours = neighbours
        self.ledger_part = ledger_part  # the declared disjoint part of the data that it touches
        self._left = {part.label: part.draws * part.folds for part in plan.parts}
        self._profiles = {part.label: part.profile for part in plan.parts}
        self._on_draw = on_draw
        self._used: list[object] = []
        self._process = this_process()
        self._lock = threading.Lock()

    def __init_subclass__(cls) -> None:
        raise NoiseError("Noise has no subclasses: one could draw what no spend paid for.")

    @property
    def private(self) -> bool:
        """Whether the noise can't be predicted or repeated."""
        return is_private(self._source)

    @property
    def generator(self) -> str:
        """The generator's name, for the certificate."""
        return generator_of(self._source)

    @property
    def sampler(self) -> str:
        """The sampler's name, for the certificate."""
        return self._source.sampler

    @property
    def used(self) -> tuple[object, ...]:
        """The mechanisms that have drawn, in their order; each stands in the certificate."""
        with self._lock:
            return tuple(self._used)

    def claim(
        self, profile: PrivacyProfile, label: str | None = None, mechanism: object = None
    ) -> NoiseSource:
        """Strike one draw of the part with this profile off the spend; return its source.

        Called by mechanisms, with themselves and the profile of what they are about to release.
        """
        refuse_after_fork(self._process)
        with self._lock:
            for name, left in self._left.items():
                wanted = label is None or label == name
                if wanted and left > 0 and self._profiles[name] == profile:
                    self._on_draw(name, mechanism)  # on record first: if that fails, the draw stays
                    self._left[name] = left - 1
                    self._note(mechanism)
                    return self._source
        raise NoiseError(
            "No undrawn part of this spend has the profile of the release: it was drawn already, or"
            " another profile was recorded. Spend the mechanism's own profile() once a release."
        )

    def _note(self, mechanism: object) -> None:
        if mechanism is not None and mechanism not in self._used:
            self._used.append(mechanism)

    def _hand_over(self) -> Callable[[str, object], None]:
        """Strike all draws off; return what records them, for the steps that draw instead."""
        with self._lock:
            self._left = dict.fromkeys(self._left, 0)

        def record(part: str, mechanism: object) -> None:
            with self._lock:
                self._on_draw(part, mechanism)
                self._note(mechanism)

        return record

    def __reduce__(self) -> str:
        raise NoiseError(
            "A Noise can't be pickled or copied: the copy could draw again. Call ledger.spend in"
            " the process that draws."
        )


def refuse_after_fork(process: tuple[int, int]) -> None:
    """Raise in another process than the one that paid: both would draw what was paid for once."""
    if this_process() != process:
        raise NoiseError(
            "This noise was paid for in another process (the program forked since). Call"
            " ledger.spend in the process that draws."
        )


def keyed_normals(key: bytes, label: bytes, count: int) -> Array:
    """Return normal numbers that follow from a secret key and a label.

    For noise that was paid for once and is needed in parts, over several processes.
    """
    return samplers.normals(count, KeyedEntropy(key, label))


def _opendp() -> Any:
    try:
        import opendp.prelude as prelude
    except ImportError as error:
        raise ParameterError(
            "OpenDPNoise needs the package 'opendp'. Install it with: pip install 'dpkernel[exact]'"
        ) from error
    prelude.enable_features("contrib")
    return prelude
