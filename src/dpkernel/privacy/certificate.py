"""The certificate: what was released, with which noise, and why the release is private.

A certificate is a frozen value. It prints in a few lines for people, is stored as JSON (the schema is in
docs/certificate.md) and can be checked by anyone: ``verify`` recomputes sensitivity, profile,
epsilon and delta from the stated parameters alone. Verifying shows that the numbers agree with each
other, not who computed them. It can't detect a consistent forgery, because whoever writes the file
could have written other parameters.

Two flags say what a certificate is worth::

    private  valid   meaning
    true     true    The guarantee holds: the noise is real and the claim is proved.
    false    true    A test or a reproduction: the noise was seeded, or something was released
                     without noise. With real noise on everything, the claim would hold.
    true     false   The noise is real, but the claimed (epsilon, delta) is not proved, as for a
                     published algorithm whose proof fails. Do not rely on it.
    false    false   Neither holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

from dpkernel.foundations.archive import read_json
from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import JSON, Budget, Neighbours, is_real, is_whole
from dpkernel.privacy.agreement import check_agreement, same_values
from dpkernel.privacy.certificate_text import PROTECTS, lines_of, shown
from dpkernel.privacy.mechanisms import Mechanism, mechanism_from_dict
from dpkernel.privacy.noise import MOST_DRAWS, TRUSTED_SOURCES, Noise
from dpkernel.privacy.profiles import PrivacyProfile, compose, profile_from_dict
from dpkernel.privacy.sensitivity import UNIT_FORMULAS
from dpkernel.version import __version__

SCHEMA = 1
# the version since which a replaced record in objective perturbation has one tail
_TIGHT_SINCE = (0, 6)
NOT_COVERED = (
    "scores, plots or summaries computed from the training rows without noise, score() included",
    "the choice of this model among others by un-noised scores, as in scikit-learn's grid search",
    "bounds or levels that were read from the data instead of being public",
)

LAST_STEP_ONLY = "this certificate covers the last step only"

ON_THE_CALLERS_WORD = {
    "disjoint-ledger-parts": "no record is in two of the parts that the ledger was divided into",
    "each-row-once": "no row was added twice to the statistics, or to two that were merged",
    "predicts-row-by-row": "what the scored model predicts for a row does not depend on other rows",
}  # assumptions that this library can't check


@dataclass(frozen=True)
class Release:
    """One line of a certificate: a mechanism and how often it was used.

    Attributes
    ----------
    label : str
        The name of the release.
    mechanism : Mechanism
        The mechanism with its parameters.
    draws : int
        How many of these releases touch one record.
    folds : int
        The number of disjoint sets of row positions. The mechanism was used ``draws`` times on each
        of them, but a record is in one set only.
    """

    label: str
    mechanism: Mechanism
    draws: int = 1
    folds: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise CertificateError("The label of a release must be a text.")
        for name in ("draws", "folds"):
            count = getattr(self, name)
            if not is_whole(count) or not 1 <= count <= MOST_DRAWS:
                raise CertificateError(
                    f"The number of {name} of a release must be an int from 1 to {MOST_DRAWS}."
                )
            object.__setattr__(self, name, int(count))
        relation = self.mechanism.sensitivity.neighbours
        if self.folds > 1 and not relation.n_is_public:
            raise CertificateError(
                f"The release {self.label!r} names {self.folds} folds, which are not disjoint for"
                f" {relation.value!r} neighbours: a removed row moves all later ones."
            )

    @property
    def title(self) -> str:
        """The label, followed by the numbers of draws and of disjoint folds if they exceed 1."""
        draws = f" ({self.draws} draws)" if self.draws > 1 else ""
        return self.label + draws + (f" ({self.folds} disjoint folds)" if self.folds > 1 else "")

    def to_dict(self) -> JSON:
        """Return the line as JSON values."""
        counts = {"draws": self.draws, "folds": self.folds}
        return {"label": self.label, **counts, **self.mechanism.to_dict()}


@dataclass(frozen=True)
class Certificate:
    """What a fitted model or a single release guarantees.

    Attributes
    ----------
    subject : str
        What the certificate is about, for example the name of an estimator.
    epsilon, delta : float
        The claim. It is never larger than what was asked for.
    neighbours : Neighbours
        The neighbouring relation of the claim.
    releases : tuple of Release
        Everything that was released with noise.
    profile : PrivacyProfile
        The composed profile of all releases: delta as a function of epsilon.
    private : bool
        True if the noise came from real entropy and nothing computed from the data was released
        without noise.
    valid : bool
        True if the claim is proved. The table at the head of this module combines both flags.
    generator, sampler : str
        Where the random numbers came from, and the algorithm that turned them into noise.
    public : mapping
        The public parameters, such as sizes and bounds.
    free_statistics : mapping
        Released statistics that cost nothing further.
    assumptions : tuple of str
        What the proof relies on, by name.
    reasons : tuple of str
        Why the certificate is not private or not valid. Empty if it is both.
    not_covered : tuple of str
        What the guarantee does not cover.
    reference : str
        The literature that the claim rests on.
    versions : mapping
        The versions of Python and of the libraries that were used.
    schema : int
        The version of the file format.
    digest : str
        A hash of everything else. It reveals that a number was changed, but not by whom: whoever
        changes a number can also recompute the hash. Empty in certificates of older versions.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    >>> model.certificate_.verify().epsilon <= 1.0
    True
    >>> model.certificate_.private
    True
    """

    subject: str
    epsilon: float
    delta: float
    neighbours: Neighbours
    releases: tuple[Release, ...]
    profile: PrivacyProfile
    private: bool
    valid: bool
    generator: str
    sampler: str
    public: Mapping[str, Any] = field(default_factory=dict)
    free_statistics: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    reference: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
    digest: str = ""

    @classmethod
    def issue(
        cls,
        subject: str,
        request: Budget,
        releases: Sequence[Release],
        noise: Noise,
        *,
        public: Mapping[str, Any],
        free_statistics: Mapping[str, Any] | None = None,
        reference: str = "",
        invalid_because: Sequence[str] = (),
        not_private_because: Sequence[str] = (),
    ) -> Certificate:
        """Return the certificate of the releases that ``noise`` paid for.

        Parameters
        ----------
        subject : str
            What the certificate is about.
        request : Budget
            What was asked for. The claim is at most this, at the same delta.
        releases : sequence of Release
            Everything that was released with noise. They must be the paid parts of ``noise``.
        noise : Noise
            The noise of the recorded spend.
        public : mapping
            The public parameters. If the spend was made in a part of a ledger, the name of the part
            is added as ``ledger_part``, and the certificate names the assumption that the parts are
            disjoint. For that it relies on the word of whoever divided the ledger.
        free_statistics : mapping, optional
            Released statistics that cost nothing further.
        reference : str, optional
            The literature. By default the references of the mechanisms.
        invalid_because : sequence of str, optional
            Why the claim is not proved.
        not_private_because : sequence of str, optional
            Why the release is not private.

        Raises
        ------
        CertificateError
            If the releases are not those that the noise was spent for, or do not support the claim.
        """
        if type(noise) is not Noise:
            raise CertificateError("A certificate needs the noise of a recorded spend.")
        paid = {
            (part.label, part.profile, part.draws, part.folds)
            for part in noise.plan.parts
            if not part.free
        }
        if paid != {(r.label, r.mechanism.profile(), r.draws, r.folds) for r in releases}:
            raise CertificateError(
                "The releases to certify are not those that this noise was spent for."
            )
        mechanisms = [r.mechanism for r in releases]
        if any(m not in mechanisms for m in noise.used):
            raise CertificateError(
                "The noise was drawn by a mechanism that is not among the releases to certify."
            )
        if any(m.sensitivity.neighbours is not noise.neighbours for m in mechanisms):
            raise CertificateError(
                f"The noise was spent for {noise.neighbours.value!r} neighbours, but a release was"
                " calibrated for another relation."
            )
        profile = _compose(releases)
        part = {} if noise.ledger_part is None else {"ledger_part": noise.ledger_part}
        stated = _plain({**public, **part})
        known = "the noise was seeded, so it can be subtracted"
        unknown = "the source of the noise is not one of the library's"
        why_not = known if "seeded" in noise.generator else unknown
        seeded = () if noise.private else (why_not,)
        reasons = (*seeded, *not_private_because, *invalid_because)
        found = cls(
            subject=subject,
            epsilon=min(profile.epsilon(request.delta), request.epsilon)
            if profile.supports(request)
            else profile.epsilon(request.delta),
            delta=request.delta,
            neighbours=releases[0].mechanism.sensitivity.neighbours,
            releases=tuple(releases),
            profile=profile,
            private=noise.private and not not_private_because,
            valid=not invalid_because,
            generator=noise.generator,
            sampler=noise.sampler,
            public=stated,
            free_statistics=_plain(_finite(free_statistics or {})),
            assumptions=_assumptions(releases, stated),
            reasons=reasons,
            not_covered=NOT_COVERED,
            reference=reference
            or "; ".join(dict.fromkeys(r.mechanism.reference for r in releases)),
            versions=dict(_versions()),
        )
        found = dataclasses.replace(found, digest=found._digest())
        if found.valid:
            found.verify()
        return found

    @property
    def _of_a_weaker_bound(self) -> bool:
        """Whether this certificate is of a version that could prove less for the same noise."""
        issued = re.match(r"(\d{1,9})\.(\d{1,9})", str(self.versions.get("dpkernel")))
        return issued is not None and tuple(map(int, issued.groups())) < _TIGHT_SINCE

    def without(self, what: str) -> Certificate:
        """Return this certificate with one more sentence on what it does not cover."""
        if what in self.not_covered:
            return self
        found = dataclasses.replace(self, not_covered=(what, *self.not_covered), digest="")
        return dataclasses.replace(found, digest=found._digest())

    def verify(self) -> Budget:
        """Recompute the claim from the stated parameters.

        Returns
        -------
        Budget
            What the parameters prove, at the delta of the certificate.

        Raises
        ------
        CertificateError
            If the parameters do not support the claim, or if the claim is marked as not proved.
        """
        if not self.valid:
            why = shown("; ".join(self.reasons)) or "no reason given"
            raise CertificateError(f"The claim of this certificate is not proved: {why}.")
        if not self.releases:
            raise CertificateError("The certificate lists no release, so it proves nothing.")
        for release in self.releases:
            relation = release.mechanism.sensitivity.neighbours
            if relation is not self.neighbours:
                raise CertificateError(
                    f"The release {release.label!r} was calibrated for {relation.value!r} neighbours,"
                    f" but the certificate claims {self.neighbours.value!r}."
                )
        self._verify_unit()
        needed, named = set(_assumptions(self.releases, self.public)), set(self.assumptions)
        if needed - named:
            raise CertificateError(
                f"The releases rest on {sorted(needed - named)}, which the certificate does not name."
            )
        if named - needed:
            raise CertificateError(
                f"The certificate names the assumptions {sorted(named - needed)}, but nothing in it"
                " depends on them."
            )
        if self.private and TRUSTED_SOURCES.get(self.generator) != self.sampler:
            raise CertificateError(
                f"The noise came through {self.sampler!r} from {self.generator!r}, but the certificate"
                " says 'private'."
            )
        if not self.private and not self.reasons:
            raise CertificateError("The certificate says 'not private' but gives no reason.")
        if self.private and self.reasons:
            raise CertificateError("The certificate says 'private' but gives reasons against it.")
        self._verify_public()
        profile = _compose(self.releases)
        if not profile.proves(self.epsilon, self.delta):
            proved = profile.delta(self.epsilon)
            raise CertificateError(
                f"The parameters prove delta = {proved:.6g} at epsilon = {self.epsilon:.6g}, but the"
                f" certificate claims delta = {self.delta:.6g}."
            )
        if self.profile != profile:
            raise CertificateError("The stated profile is not the one that the parameters give.")
        least = profile.epsilon(self.delta)
        if self.epsilon > least * (1 + 1e-9) + 1e-12 and not self._of_a_weaker_bound:
            raise CertificateError(
                f"The certificate claims epsilon = {self.epsilon:.6g}, but its parameters give"
                f" {least:.6g} at delta = {self.delta:.6g}."
            )
        if self.digest and self.digest != self._digest():
            raise CertificateError(
                "The certificate was changed after it was issued: its digest does not match its values."
            )
        # a search for the least epsilon may end above a tiny one, which was proved directly
        return Budget(max(min(least, self.epsilon), 1e-300), self.delta)

    def _verify_public(self) -> None:
        """Raise unless the public parameters agree with the releases."""
        try:
            check_agreement(dict(self.public), [release.to_dict() for release in self.releases])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            if isinstance(error, CertificateError):
                raise
            raise CertificateError(
                f"The values under 'public' can't be compared with the releases ({error!r})."
            ) from error

    def _digest(self) -> str:
        """Return the hash of the canonical JSON text of everything but the digest."""
        content = {name: value for name, value in self.to_dict().items() if name != "digest"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def unit(self) -> str:
        """What counts as one record: "row", or "group" for all rows of one unit (a person)."""
        return str(self.public.get("unit", "row"))

    @property
    def n_records(self) -> int:
        """The public number of records: of rows, of units, or of places if the number is private."""
        if not self.neighbours.n_is_public:
            return int(self.public["n_places"])
        return int(self.public["n_units" if self.unit == "group" else "n_rows"])

    def of_people(self, record: str) -> Certificate:
        """Return the certificate of a fit whose records were made from the rows of one unit each.

        ``record`` says how. The fit itself saw records only, so its certificate speaks of rows.
        """
        found = dataclasses.replace(self, public=of_people(self.public, record), digest="")
        return dataclasses.replace(found, digest=found._digest())

    @property
    def _one_record_per_unit(self) -> bool:
        """Whether the rows of each unit became one record before anything was computed."""
        return self.unit == "group" and self.public.get("unit_record") in UNIT_RECORDS

    def _verify_unit(self) -> None:
        if self.unit not in PROTECTS:
            known = ", ".join(repr(unit) for unit in PROTECTS)
            raise CertificateError(f"The unit of a certificate must be one of {known}.")
        for release in self.releases:
            formula = release.mechanism.sensitivity.formula
            if formula == "unit-gram" and not getattr(release.mechanism, "rounding", 0.0) > 0:
                raise CertificateError(
                    f"The release {release.label!r} is a sum over units in floating point and states"
                    " no rounding error."
                )
            if self._one_record_per_unit:
                continue
            if self.unit == "group" and formula not in UNIT_FORMULAS:
                raise CertificateError(
                    f"The certificate claims to protect all rows of a unit, but the release"
                    f" {release.label!r} was calibrated for single rows ({formula})."
                )
            if self.unit == "group" and release.folds > 1:
                raise CertificateError(
                    f"The release {release.label!r} names folds of rows, but the rows of one unit can"
                    " lie in several folds."
                )

    @property
    def last_step_only(self) -> bool:
        """Whether other steps of a pipeline learned from the rows without noise, before this fit."""
        return any(LAST_STEP_ONLY in text for text in self.not_covered)

    @property
    def verdict(self) -> str:
        """Verify the certificate and say in one line whether the guarantee holds, or why not."""
        try:
            self.verify()
        except CertificateError as error:
            return f"NO GUARANTEE: {error}"
        why = shown("; ".join(self.reasons)) or "the noise is not private"
        return "the guarantee holds" if self.private else f"NO GUARANTEE: {why}"

    def to_dict(self) -> JSON:
        """Return the certificate as JSON values."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["neighbours"] = self.neighbours.value
        plain["releases"] = [release.to_dict() for release in self.releases]
        plain["profile"] = self.profile.to_dict()
        lists = ("assumptions", "reasons", "not_covered")
        plain.update({name: list(plain[name]) for name in lists})
        plain.update(
            {name: dict(plain[name]) for name in ("public", "free_statistics", "versions")}
        )
        return plain

    def to_json(self) -> str:
        """Return the certificate as JSON text. Floats survive the round trip exactly."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate from JSON text. Call ``verify`` before you trust it.

        Texts above 16 MiB or with more than 64 levels of nesting are refused.
        """
        try:
            content = text.encode() if isinstance(text, str) else bytes(text)
            data = read_json(content.removeprefix(b"\xef\xbb\xbf"), "it")
        except json.JSONDecodeError as error:
            raise CertificateError(f"This is not JSON ({error}).") from error
        except ValueError as error:
            raise CertificateError(f"This is not a certificate of dpkernel: {error}.") from error
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: JSON) -> Certificate:
        """Return the certificate described by JSON values."""
        names = {f.name for f in dataclasses.fields(cls)}
        if isinstance(data, dict):
            data = {"digest": "", **data}  # certificates of older versions have no digest
        if not isinstance(data, dict) or not names <= set(data):
            missing = sorted(names - set(data)) if isinstance(data, dict) else "everything"
            raise CertificateError(f"This is not a certificate of dpkernel: {missing} is missing.")
        if data["schema"] != SCHEMA or isinstance(data["schema"], bool):
            raise CertificateError(
                f"The certificate has schema {data['schema']!r} and this version of dpkernel reads"
                f" schema {SCHEMA}. Use the version that wrote it, or a newer one."
            )
        try:
            values = {name: data[name] for name in names}
            _check_types(data)
            values["neighbours"] = Neighbours.resolve(data["neighbours"])
            values["profile"] = profile_from_dict(data["profile"])
            if same_values(data["profile"], values["profile"].to_dict()) is not None:
                raise CertificateError("The profile can't be read: it states unknown values.")
            values["assumptions"] = tuple(data["assumptions"])
            values["reasons"] = tuple(data["reasons"])
            values["not_covered"] = tuple(data["not_covered"])
            values["epsilon"], values["delta"] = float(data["epsilon"]), float(data["delta"])
            values["releases"] = tuple(_read_release(line) for line in data["releases"])
            if not (0 <= values["epsilon"] < math.inf and 0 <= values["delta"] < 1):
                raise CertificateError(
                    "The certificate's epsilon or delta is not a valid privacy parameter."
                )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CertificateError):
                raise
            raise CertificateError(f"The certificate can't be read ({error}).") from error
        return cls(**values)

    @property
    def best_guess(self) -> float:
        """The largest share of right guesses of an attacker who knows all other records.

        The attacker also knows two candidates for the one record, each of which is as likely as the
        other, and sees everything that was released. Guessing blindly is right half of the time. The
        bound follows from the profile: it is (1 + delta(0)) / 2.
        """
        odds = math.exp(min(self.epsilon, 700.0))
        return min((odds + self.delta) / (1 + odds), (1 + self.profile.delta(0.0)) / 2, 1.0)

    def __str__(self) -> str:
        if not self.releases:
            return f"{shown(self.subject)}: no release, no guarantee"
        return "\n".join(shown(f"{name:<12} {text}".strip()) for name, text in lines_of(self))

    def _repr_html_(self) -> str:
        """Return the same lines as a table, for notebooks."""
        lines = lines_of(self) if self.releases else [(str(self), "")]
        return html_table([shown(name), shown(text)] for name, text in lines)


UNIT_RECORDS = ("near", "one", "mean", "mean loss", "mean gradient")


def of_people(public: Mapping[str, Any], record: str) -> JSON:
    """Return the public values of a fit to a table in which each record stands for one unit.

    ``record`` says how the rows of a unit became its record.
    """
    rest = {name: value for name, value in public.items() if name != "n_rows"}
    return {"unit": "group", "n_units": public["n_rows"], "unit_record": record, **rest}


def of_places(public: Mapping[str, Any]) -> JSON:
    """Return the public values of a fit to a table of places, whose number of records is private."""
    rest = {name: value for name, value in public.items() if name not in ("n_rows", "n_units")}
    return {"n_places": public.get("n_rows", public.get("n_units")), **rest}


def _compose(releases: Sequence[Release]) -> PrivacyProfile:
    """Return the composed profile of what touches one record: one fold of each release."""
    return compose([r.mechanism.profile().repeat(r.draws) for r in releases])


def _check_types(data: JSON) -> None:
    kinds = {
        "private": bool,
        "valid": bool,
        "subject": str,
        "generator": str,
        "sampler": str,
        "reference": str,
        "digest": str,
        "public": dict,
        "free_statistics": dict,
        "versions": dict,
        "assumptions": list,
        "reasons": list,
        "not_covered": list,
        "releases": list,
    }
    for name, kind in kinds.items():
        if not isinstance(data[name], kind):
            raise CertificateError(
                f"The field '{name}' of a certificate must be a {kind.__name__}."
            )
    for name in ("assumptions", "reasons", "not_covered"):
        if not all(isinstance(text, str) for text in data[name]):
            raise CertificateError(f"The field '{name}' of a certificate must be a list of texts.")
    if any(not is_real(data[name]) for name in ("epsilon", "delta")):
        raise CertificateError("The certificate can't be read (epsilon or delta is not a number).")


def _read_release(line: JSON) -> Release:
    folds = line.get("folds", 1)  # certificates written before folds existed have none
    found = Release(line["label"], mechanism_from_dict(line), line["draws"], folds)
    wrong = same_values(line, found.to_dict(), optional=("folds",))
    if wrong is not None:
        raise CertificateError(
            f"The {wrong} of the release {found.label!r} is not the one its parameters give."
        )
    return found


def _assumptions(releases: Sequence[Release], public: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the assumptions of the mechanisms and those that the caller answers for."""
    found = [name for r in releases for name in r.mechanism.assumptions]
    found += ["disjoint-ledger-parts"] if "ledger_part" in public else []
    found += ["each-row-once"] if public.get("rows_added_by") == "caller" else []
    found += ["predicts-row-by-row"] if public.get("predicted_by") == "caller" else []
    return tuple(dict.fromkeys(found))


def _plain(values: Mapping[str, Any]) -> JSON:
    """Return plain JSON values, as a reader of the file would get them."""
    found: JSON = json.loads(json.dumps(dict(values), allow_nan=False))
    return found


def _finite(value: Any) -> Any:
    """Replace released numbers that overflowed by None, so that a paid fit does not fail."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "dpkernel": __version__}
    for name in ("numpy", "scipy", "scikit-learn", "dp-accounting"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
