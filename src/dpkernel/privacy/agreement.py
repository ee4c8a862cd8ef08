"""Check that the public parameters of a certificate agree with its releases.

A certificate states some numbers twice: under ``public`` and in its releases. ``_SAME`` lists the
plain numbers: a place in ``public`` and the names under which the releases state the same number.
The functions after it compare values that follow from several numbers. A place that is missing, or
that no release mentions, contradicts nothing. docs/certificate.md lists these places for each
estimator, and the tests check the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON, is_real
from dpkernel.models.losses import Loss, loss_from_dict

Line = Mapping[str, Any]  # the values that one release states, by name
Comparisons = Iterator[tuple[str, Any, Any]]  # a place, its value, the value it must have

_SAME: dict[tuple[str, ...], tuple[str, ...]] = {
    ("n_rows",): ("n_rows",),
    ("n_units",): ("n_rows",),
    ("n_places",): ("n_rows",),
    ("folds", "count"): ("folds",),
    ("integer_grid", "row"): ("row",),
    ("integer_grid", "target"): ("target",),
    ("integer_grid", "constant"): ("constant",),
    ("record_scale", "row"): ("row",),
    ("record_scale", "target"): ("target",),
    ("record_scale", "constant"): ("constant",),
    ("regularisation",): ("ridge", "strength"),
    ("threshold",): ("slope",),
    ("scheme", "batch"): ("batch",),
    ("scheme", "steps"): ("steps",),
    ("scheme", "step"): ("step",),
    ("scheme", "ridge"): ("ridge",),
    ("scheme", "gradient_bound"): ("gradient",),
    ("scheme", "decreasing_steps"): ("decreasing",),
    ("scheme", "averaged"): ("averaged",),
    ("selection", "candidates"): ("candidates",),
}


def check_agreement(public: JSON, releases: Sequence[JSON]) -> None:
    """Raise unless everything under ``public`` agrees with the releases, given as JSON values.

    Usually a number must equal every number that the releases state for it. A search is different:
    its releases belong to all candidates, and ``public`` describes the chosen one. There the number
    must equal one of those that are stated.
    """
    lines = [line for release in releases for line in _lines(release)]
    for place, names in _SAME.items():
        shown, stated = _numbers(_at(public, place)), set(_stated(lines, names))
        if shown is None or not stated:
            continue
        unknown = [number for number in shown if not _among(number, stated)]
        missing = [n for n in stated if not _among(n, shown)] if "selection" not in public else []
        if unknown or missing:
            _disagree(".".join(place), shown, sorted(stated))
    for rule in (_sizes, _losses, _scheme, _selection, _steps, _score):
        for what, shown, stated in rule(public, lines, releases):
            if not _equal(shown, stated):
                _disagree(what, shown, stated)


# --- rules that need several numbers; each yields (place, value, value it must have) --------------


def _sizes(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare the numbers of columns and the batch size; a full batch has all rows."""
    width, declared = public.get("n_columns"), _at(public, ("domain", "columns"))
    inputs = _at(public, ("feature_map", "n_inputs"))
    if width is not None and isinstance(declared, list):
        yield "domain.columns", len(declared), width
    levels = isinstance(declared, list) and any("levels" in column for column in declared)
    if width is not None and inputs is not None and not levels:  # each level adds a column
        yield "feature_map.n_inputs", inputs, width
    for columns in _stated(lines, ("columns",)) if isinstance(public.get("ranges"), list) else ():
        yield "ranges", len(public["ranges"]), columns


def _losses(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare the loss with the slope in the sensitivity and the curvature in the mechanism."""
    formulas = {_minimiser(line) for line in lines}
    if isinstance(public.get("loss"), str):
        if formulas & {"erm-ridge", "erm-lipschitz"}:
            yield "loss", public["loss"], "squared" if "erm-ridge" in formulas else "huber"
        yield "threshold", public.get("threshold") is None, public["loss"] == "squared"
    if not isinstance(public.get("losses"), list) or "selection" in public:
        return
    losses = [loss_from_dict(loss) for loss in public["losses"]]
    inside = [line for line in lines if line["formula"] == "loss-gradient"]
    if "solver" in public:
        yield "solver", public["solver"], "objective" if inside else "output"
    if inside:
        yield "losses", len(losses), len(inside)
    for line in lines:
        if _minimiser(line) == "erm-ridge":
            yield "losses", [loss.kind for loss in losses], ["squared"]
        if line in inside or (_minimiser(line) == "erm-lipschitz" and len(losses) <= 1):
            yield "losses", any(_is_of(loss, line) for loss in losses), True
        elif _minimiser(line) == "erm-lipschitz":  # each loss has a problem of its own, or several
            squares = math.fsum(loss.lipschitz**2 for loss in losses)
            yield "losses", line["problems"] * line["slope"] ** 2 >= squares * (1 - 1e-12), True


def _minimiser(line: Line) -> str:
    """Return the formula of a release; of values of a minimiser, that of the minimiser itself."""
    if line["formula"] != "erm-prediction":
        return str(line["formula"])
    return (
        "erm-lipschitz" if "slope" in line else "erm-ridge" if "target" in line else "erm-bounded"
    )


def _is_of(loss: Loss, line: Line) -> bool:
    """Return whether a loss has the slope and the curvature that a release states."""
    bend = line.get("curvature")
    return _equal(loss.lipschitz, line["slope"]) and (
        bend is None or _equal(loss.smoothness * line["row"] ** 2, bend)
    )


def _scheme(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare the schedule of a stochastic gradient method, in units of its loss."""
    scheme = public.get("scheme")
    if not isinstance(scheme, dict) or len(lines) != 1 or "perturbation" not in scheme:
        return
    (line,) = lines
    unit = 1.0
    loss_from_dict(public["loss"])
    yield "scheme.perturbation", scheme["perturbation"], "output" if "steps" in line else "gradient"
    if scheme["perturbation"] == "output":
        steps, batch, n_rows = (int(line[name]) for name in ("steps", "batch", "n_rows"))
        epoch = n_rows // batch if line["drop_last"] else -(-n_rows // batch)
        if line["formula"] == "sgd-sampled":  # any number of hits is possible
            yield "scheme.most_hits", scheme["most_hits"], None
        elif scheme["most_hits"] is not None:
            yield "scheme.most_hits", scheme["most_hits"], -(-steps // epoch)
        orders = {"sgd-sampled": ["replacement"], "sgd-shuffled": ["shuffle"]}
        known = orders.get(line["formula"], ["shuffle", "fixed"])
        yield "scheme.sampling", scheme["sampling"] in known, True
    else:
        unit = line["bound"] / scheme["clip"]
        yield "scheme.steps", scheme["steps"], line["draws"]
        sampling = line.get("sampling", "full")
        yield "scheme.sampling", scheme["sampling"], {"fixed": "uniform"}.get(sampling, sampling)
        if sampling == "full":
            sizes = [public[name] for name in ("n_rows", "n_units", "n_places") if name in public]
            yield "scheme.batch", scheme["batch"], sizes[0] if sizes else None
    yield "scheme.sensitivity", scheme["sensitivity"], line["value"] / unit
    yield "scheme.sigma", scheme["sigma"], line["noise_scale"] / unit


def _selection(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare how a candidate was chosen, and on how many rows."""
    plan = public.get("selection")
    if not isinstance(plan, dict):
        return
    kinds = {"random-stopping": "random-stopping", "held-out-choice": "exponential"}
    if len(releases) == 1:
        yield "selection.strategy", plan["strategy"], kinds.get(releases[0]["kind"], "free")
        yield "selection.law", plan["law"], releases[0].get("law")
    if plan["strategy"] != "exponential":
        yield "selection.choice_epsilon", plan["choice_epsilon"], None
    rows = plan["train_rows"] + (plan["validation_rows"] if plan["refit_epsilon"] else 0)
    for name in {"n_rows", "n_units"} & set(public):
        yield "selection.train_rows", public[name], rows


def _steps(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare the private steps of a pipeline with the steps that release something."""
    if not isinstance(public.get("budgets"), dict):
        return
    names = list(dict.fromkeys(release["label"].partition(": ")[0] for release in releases))
    yield "budgets", sorted(public["budgets"]), sorted(names)
    yield "weights", sorted(public["weights"]), sorted(names)
    yield "steps", [step[0] for step in public["steps"] if step[0] in names], names


def _score(public: JSON, lines: Sequence[Line], releases: Sequence[JSON]) -> Comparisons:
    """Compare the metric of a score with the label of its release."""
    if "metric" in public and len(releases) == 1:
        yield "metric", f"{public['metric']} of held-out rows", releases[0]["label"]


# --- reading --------------------------------------------------------------------------------------


def _lines(release: JSON) -> Iterator[Line]:
    """Yield the named values of a release, and those of the releases inside it."""
    sensitivity = release["sensitivity"]
    plain = {name: value for name, value in release.items() if not isinstance(value, (dict, list))}
    derived = {"formula": sensitivity["formula"], "value": sensitivity["value"]}
    yield {**sensitivity["parameters"], **plain, **derived}
    for name in ("training", "refit"):
        for fit in release.get(name, ()):
            for inner in fit:
                yield from _lines({**inner["mechanism"], **inner})


def _at(public: JSON, place: Sequence[str]) -> Any:
    found: Any = public
    for name in place:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _numbers(value: Any) -> list[float] | None:
    """Return a number, or the numbers of a list, as a list; None for anything else."""
    values = value if isinstance(value, list) else [value]
    fine = all(is_real(one) or isinstance(one, bool) for one in values)
    return [float(one) for one in values] if fine else None


def _stated(lines: Sequence[Line], names: Sequence[str]) -> Iterator[float]:
    for line in lines:
        yield from (float(line[name]) for name in names if is_real(line.get(name)))


def _among(number: float, numbers: Any) -> bool:
    return any(_equal(number, other) for other in numbers)


def _equal(one: Any, other: Any, tolerance: float = 1e-9) -> bool:
    if is_real(one) and is_real(other):
        return math.isclose(one, other, rel_tol=tolerance)
    if isinstance(one, dict) and isinstance(other, dict):
        same = one.keys() == other.keys()
        return same and all(_equal(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        same = len(one) == len(other)
        return same and all(_equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def same_values(given: JSON, derived: JSON, optional: Sequence[str] = ()) -> str | None:
    """Return the first name whose given value differs from the derived one, or None.

    The given values may contain further names. A small difference is allowed, because another
    processor may round the last bits of a derived number differently.
    """
    for name, value in derived.items():
        there = name in given or name in optional
        if not there or not _equal(given.get(name, value), value, 1e-14):
            return name
    return None


def _disagree(what: str, shown: Any, stated: Any) -> None:
    raise CertificateError(
        f"The certificate contradicts itself: public.{what} is {_short(shown)}, but its releases say"
        f" {_short(stated)}."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
