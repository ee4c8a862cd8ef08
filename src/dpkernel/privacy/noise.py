"""Sources of noise, and ``Noise``, the only object that may draw from them.

A source turns random words into noise. There are three: ``SystemNoise`` (the default),
``SeededNoise`` (for tests and reproductions, never private) and ``OpenDPNoise`` (OpenDP's exact
sampler, which needs the extra ``[exact]``). A fit with a resume file uses ``ResumableNoise``.

A ``Noise`` is the right to draw what one recorded spend paid for. Only a ledger creates one, and
every mechanism needs one. Each part of the spend can be released as often as it was paid for and no
more, and only in the process that paid.

This protects against mistakes. It does not protect against a curator who writes code to get around
it: whoever has the data can leak them anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
_ORDER_SEED = 104_729  # distance between the seeds of noise and of the order of people
FREE = GaussianProfile(0.0)  # the profile of random draws that are never released


class NoiseSource:
    """Base class of sources that turn random words into discrete noise.

    Parameters
    ----------
    entropy : WordSource
        The source of uniform 64-bit words.
    """

    def __init__(self, entropy: WordSource) -> None:
        self._entropy = entropy

    @property
    def private(self) -> bool:
        """Whether the noise can't be predicted or repeated; true only for sources of this module."""
        return is_private(self)

    @property
    def generator(self) -> str:
        """The name of the generator, for the certificate."""
        return generator_of(self)

    sampler = "exact bucket sampler"

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Gaussian variables with this scale."""
        return samplers.discrete_gaussian(scale, size, self._entropy)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Laplace variables with this scale."""
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
        """Include each of 0 .. n - 1 independently, with probability ``rate`` or up to 2^-64 less."""
        return samplers.poisson_subset(n, rate, self._entropy)

    def standard_normals(self, count: int) -> Array:
        """Draw independent standard normal variables in floating-point arithmetic."""
        return self.normals_of(self.words(count))

    def normals_of(self, words: np.ndarray) -> Array:
        """Return one normal variable per word. This is the slow part and may run in another thread."""
        return samplers.normals_of(words)

    def words(self, count: int) -> np.ndarray:
        """Draw uniform 64-bit words, which are needed to form folds."""
        return self._entropy.words(count)


class SystemNoise(NoiseSource):
    """Noise from the operating system's cryptographic generator. The default."""

    def __init__(self) -> None:
        super().__init__(SystemEntropy())

    def __repr__(self) -> str:
        return "SystemNoise()"


class SeededNoise(NoiseSource):
    """Repeatable noise for tests and reproductions; it never protects anything.

    Whoever knows the seed can subtract the noise. Every certificate of a release with seeded noise
    therefore says ``private: false``.

    Parameters
    ----------
    seed : int
        Two sources with the same seed give the same noise. Every fit starts the stream again.

    Examples
    --------
    >>> from dpkernel import PrivateKernelRidge, SeededNoise
    >>> model = PrivateKernelRidge(bounds=(0, 1), y_bounds=(0, 1), noise=SeededNoise(0))
    >>> model.fit([[0.1], [0.9]], [0.2, 0.8]).certificate_.private
    False
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ParameterError(parameter_message("SeededNoise", "seed", "an int >= 0", seed))
        super().__init__(SeededEntropy(int(seed)))
        self.seed = int(seed)

    def restarted(self) -> SeededNoise:
        """Return a new source that starts at the beginning of the stream."""
        return SeededNoise(self.seed)

    def __reduce__(self) -> tuple[type[SeededNoise], tuple[int]]:
        return SeededNoise, (self.seed,)

    def __repr__(self) -> str:
        return f"SeededNoise({self.seed})"


class OpenDPNoise(SystemNoise):
    """Integer noise from OpenDP's exact samplers (``pip install opendp``).

    It is about 200 times slower than the default, which is exact as well. Use it if your rules ask
    for OpenDP. OpenDP has no sampler for selection and for pure l2 noise in the form needed here,
    so these still come from this library.
    """

    sampler = "OpenDP"

    def __init__(self) -> None:
        super().__init__()
        _opendp()

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Gaussian variables with this scale."""
        return self._draw("make_gaussian", "l2_distance", scale, size)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw independent discrete Laplace variables with this scale."""
        return self._draw("make_laplace", "l1_distance", scale, size)

    def _draw(self, maker: str, metric: str, scale: float, size: int) -> IntArray:
        prelude = _opendp()
        domain = prelude.vector_domain(prelude.atom_domain(T=prelude.i64))
        space = domain, getattr(prelude, metric)(T=prelude.i64)
        measurement = getattr(prelude.m, maker)(*space, scale=scale)
        return np.asarray(measurement([0] * size), dtype=np.int64)

    def __repr__(self) -> str:
        return "OpenDPNoise()"


class _NoEntropy:
    """Stands for words outside a release."""

    private, generator = False, "none"

    def words(self, count: int) -> np.ndarray:
        raise NoiseError("A fit with a resume file draws noise for its releases only.")


class ResumableNoise(NoiseSource):
    """Noise of a fit that can go on after an interruption: expanded from the keys of its resume file.

    Only a ``ResumeFile`` creates it, and starts it anew with another key for each release.
    """

    def __init__(self, mint: object, journal: Any, seeded: bool) -> None:
        if mint is not _MINT:
            raise NoiseError("A ResumableNoise can't be made by hand. Call fit(..., resume=path).")
        super().__init__(_NoEntropy())
        self.journal, self._seeded = journal, seeded

    def start(self, key: bytes) -> None:
        """Begin the noise that belongs to a key."""
        self._entropy = KeyedEntropy(key, b"noise")

    def stop(self) -> None:
        """Refuse to draw until the next start: what is drawn between releases would not be kept."""
        self._entropy = _NoEntropy()

    def __reduce__(self) -> str:
        raise NoiseError("A ResumableNoise can't be pickled or copied.")


def secret_order(noise: NoiseSource | None) -> Callable[[int], IntArray]:
    """Return a function that draws a uniform order of n people, which is used and never released.

    The words come from the operating system if no source is given. A seeded source gives a stream
    of its own, so that the order does not repeat the noise.
    """
    if noise is None:
        return partial(samplers.permutation, source=SystemEntropy())
    if isinstance(noise, SeededNoise):
        return SeededNoise(noise.seed + _ORDER_SEED).permutation
    return noise.permutation


def is_private(source: NoiseSource) -> bool:
    """Return whether a source is a class of this library that draws from the operating system.

    The type of the source decides, not its attributes: a user's class could claim anything.
    """
    if type(source) is ResumableNoise:  # its keys come from the operating system, or from a seed
        return not source._seeded
    fresh = type(getattr(source, "_entropy", None)) is SystemEntropy
    return fresh and type(source) in (SystemNoise, OpenDPNoise)


def generator_of(source: NoiseSource) -> str:
    """Return the name of the generator behind a source, or "unknown" for a user's own class."""
    entropy = getattr(source, "_entropy", None)
    if is_private(source):
        return _GENERATORS[type(source)]
    return entropy.generator if isinstance(entropy, (SeededEntropy, KeyedEntropy)) else "unknown"


@dataclass(frozen=True)
class Part:
    """One line of a plan: a release with its profile.

    Attributes
    ----------
    label : str
        The name of the release, different for each part of a plan.
    profile : PrivacyProfile
        The profile of one draw. The profile ``FREE`` pays for random words that are not released
        themselves and whose distribution does not depend on the data, such as the order in which a
        stochastic method visits the rows. Such a part costs nothing and no certificate lists it.
    draws : int
        How many of these releases touch one record.
    folds : int
        The number of disjoint sets of rows on which the release is made. The noise may be drawn
        draws * folds times, but the profile counts ``draws`` only.

    Notes
    -----
    The rows of a fold follow from their positions. Two neighbouring data sets with a public number
    of rows therefore differ in one fold only. Whoever states folds is responsible for their being
    disjoint. A ledger refuses folds under add-remove, where removing a row moves all later rows.
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
        """Whether this part costs nothing because nothing that it draws is released."""
        return self.profile == FREE


@dataclass(frozen=True)
class Plan:
    """Everything that one fit is going to release, fixed before its first draw.

    Attributes
    ----------
    parts : tuple of Part
        The releases.
    nothing_proved : bool
        If true, the plan is charged as if it revealed everything. This is for published algorithms
        whose claim has no proof, and for audits.
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
        """The privacy profile of the whole plan: the composition of its parts.

        The number of folds has no effect, because a record is in one fold only.
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
        """Return a plan unchanged, or turn a profile into a plan with one part."""
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


_GENERATORS: dict[type[NoiseSource], str] = {
    SystemNoise: SystemEntropy.generator,
    OpenDPNoise: "OpenDP and os.urandom",
    ResumableNoise: "os.urandom, expanded by SHAKE-256",
}
TRUSTED_SOURCES = {name: source.sampler for source, name in _GENERATORS.items()}
# only ledger.py and resume.py pass this object, so nobody else can create a Noise
_MINT = object()


class Noise:
    """The right to draw the noise of one recorded spend. Only ``ledger.spend`` creates it.

    Attributes
    ----------
    plan : Plan
        What the spend paid for.
    neighbours : Neighbours
        The neighbouring relation of the ledger.
    ledger_part : str or None
        The declared disjoint part of the data set that the spend was made on, if any.
    number : int
        The number of the spend in its ledger; 0 if it has none of its own.
    time : str
        When it was recorded.
    """

    number = 0
    time = ""

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
        self.ledger_part = ledger_part
        self._left = {part.label: part.draws * part.folds for part in plan.parts}
        self._profiles = {part.label: part.profile for part in plan.parts}
        self._on_draw = on_draw
        self._used: list[object] = []
        self._process = this_process()
        self._lock = threading.Lock()

    def __init_subclass__(cls) -> None:
        raise NoiseError("Noise has no subclasses: one could draw what no spend paid for.")

    @property
    def journal(self) -> Any:
        """The resume file that keeps every release of this spend, or None."""
        return self._source.journal if type(self._source) is ResumableNoise else None

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
        """The mechanisms that have drawn, in order. The certificate must list each of them."""
        with self._lock:
            return tuple(self._used)

    def claim(
        self, profile: PrivacyProfile, label: str | None = None, mechanism: object = None
    ) -> NoiseSource:
        """Use up one draw of the part with this profile and return the source of noise.

        Mechanisms call this method just before a release.

        Parameters
        ----------
        profile : PrivacyProfile
            The profile of the release.
        label : str, optional
            The label of the part. By default any part with this profile.
        mechanism : object, optional
            The mechanism that releases.

        Raises
        ------
        NoiseError
            If no paid draw with this profile is left, or in another process than the one that paid.
        """
        refuse_after_fork(self._process)
        with self._lock:
            for name, left in self._left.items():
                wanted = label is None or label == name
                if wanted and left > 0 and self._profiles[name] == profile:
                    self._on_draw(name, mechanism)  # first: if it fails, the draw is not lost
                    self._left[name] = left - 1
                    self._note(mechanism)
                    return self._source
        raise NoiseError(
            "No undrawn part of this spend has the profile of the release: it was drawn already, or"
            " another profile was recorded. Spend the mechanism's own profile() once per release."
        )

    def _note(self, mechanism: object) -> None:
        if mechanism is not None and mechanism not in self._used:
            self._used.append(mechanism)

    def _hand_over(self) -> Callable[[str, object], None]:
        """Give up all draws; return the function by which the steps record theirs instead."""
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
    """Raise in a forked process: both processes would draw what was paid for only once."""
    if this_process() != process:
        raise NoiseError(
            "This noise was paid for in another process (the program has forked since). Call"
            " ledger.spend in the process that draws."
        )


def keyed_normals(key: bytes, label: bytes, count: int) -> Array:
    """Return normal variables that are determined by a secret key and a label.

    They serve noise that is paid for once and then needed piece by piece in several processes.
    """
    return samplers.normals(count, KeyedEntropy(key, label))


def _opendp() -> Any:
    try:
        import opendp.prelude as prelude
    except ImportError as error:
        raise ParameterError(
            "OpenDPNoise needs the package 'opendp'. Install it with: pip install opendp"
        ) from error
    prelude.enable_features("contrib")
    return prelude
