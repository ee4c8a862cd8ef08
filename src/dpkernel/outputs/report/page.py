"""``write_report``: put the sections of a report together into one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpkernel.foundations.archive import require_folder
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.outputs.cells import cell_lines, constant_line, imputed_lines
from dpkernel.outputs.report.budget import budget_history
from dpkernel.outputs.report.encoding import read_declared
from dpkernel.outputs.report.glossary import glossary
from dpkernel.outputs.report.markup import Html, items, join, paragraph, tag
from dpkernel.outputs.report.pictures import model_pictures, relevance_picture
from dpkernel.outputs.report.quality import Figure, free_figures, quality, read_scores
from dpkernel.outputs.report.sections import (
    attacker,
    certificate_text,
    citation,
    objections,
    public_facts,
    released,
    verification,
)
from dpkernel.outputs.report.style import policy, stylesheet
from dpkernel.outputs.report.summary import summary
from dpkernel.outputs.report.views import View, relevance_of, spread_of, view_of
from dpkernel.preprocessing.imputer import PrivateImputer
from dpkernel.preprocessing.pipeline import PrivatePipeline
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.selection.search import PrivateSearchCV

_WITH = (
    "This page describes numbers that were released from confidential data with differential privacy:"
    " random noise, large enough to hide any one record, was added to everything that was released."
)
_WITHOUT = (
    "This page describes numbers that were released from confidential data, without a guarantee of"
    " privacy."
)


def write_report(
    model: Any,
    path: str | Path,
    *,
    ledger: Any = None,
    scores: Any = None,
    schema: Any = None,
    title: str = "Privacy report",
) -> Path:
    """Write a report about a model and its guarantee, as one HTML page.

    The page says what was released, why that is private and what the model says. It is for readers who
    do not program, such as an ethics board. It has no script and loads nothing from the network. An
    existing file is replaced in one step.

    Parameters
    ----------
    model : fitted estimator or Certificate
        The model to describe. A certificate alone gives a page without pictures of the model.
    path : str or Path
        The file to write.
    ledger : Ledger, optional
        The ledger of the data. The page shows its whole history.
    scores : PrivateScore, or list or dict of PrivateScore, optional
        What ``private_score`` returned. The keys of a dict are the names on the page.
    schema : Schema or Domain, optional
        Describes the columns before categories were encoded as columns of 0 and 1, one per level, as
        the command line encodes them. It is public. The page then shows each category as one column,
        and evaluates the model only at rows that have exactly one level of each category. Categories
        that the model itself knows need no schema.
    title : str
        The heading of the page.

    Returns
    -------
    Path
        The path of the page.

    Notes
    -----
    Guarantee
        Everything on the page is computed from the certificate, the released model, the ledger and
        the scores. No row of data is read and nothing is spent. If the certificate does not hold, the
        page says so first.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from dpkernel import PrivateKernelRidge
    >>> from dpkernel.outputs.report import write_report
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2)); y = X @ [1.0, -1.0]
    >>> model = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, folder + "/report.html").name
    'report.html'
    """
    certificate = model if isinstance(model, Certificate) else getattr(model, "certificate_", None)
    if not isinstance(certificate, Certificate):
        allowed = "a fitted estimator of dpkernel or a Certificate"
        got = type(model).__name__
        raise ParameterError(parameter_message("write_report", "model", allowed, got))
    if ledger is not None and not isinstance(ledger, Ledger):
        got = type(ledger).__name__
        raise ParameterError(parameter_message("write_report", "ledger", "a Ledger or None", got))
    known = read_scores(scores)
    against = objections(certificate)
    declared = read_declared(schema)
    view = None if model is certificate else view_of(model, declared)
    names = None if view is None else view.names
    own = _certificates(model, certificate)
    statistics = {name: value for c in own for name, value in c.free_statistics.items()}
    relevance = [] if view is None else relevance_of(model, statistics, view)
    cells = cell_lines(certificate.free_statistics, schema)
    figures = [*free_figures(statistics), *_extra(model, view, statistics)]
    body = join(
        summary(
            title,
            certificate,
            against,
            figures=figures,
            scores=known,
            relevance=relevance,
            cells=cells,
            ledger=ledger,
            constant=constant_line(certificate),
        ),
        paragraph(_WITHOUT if against else _WITH),
        released(certificate, against),
        attacker(certificate, against),
        certificate_text(certificate),
        quality(figures, known),
        _cells(cells, imputed_lines(model, schema)),
        relevance_picture(relevance),
        None if model is certificate else model_pictures(model, view),
        None if ledger is None else budget_history(ledger, certificate),
        public_facts(certificate, names, declared, _domain(model, certificate)),
        verification(certificate),
        citation(certificate),
    )
    style = stylesheet()
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(style)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", ("NO GUARANTEE: " if against else "") + title),
        tag("style", Html(style)),
    )
    page = tag(
        "html", tag("head", head), "\n", tag("body", tag("main", body), glossary()), lang="en"
    )
    path = Path(path)
    require_folder(path)
    draft = path.with_name(path.name + ".part")
    draft.write_text(f"<!doctype html>\n{page}\n", encoding="utf-8")
    draft.replace(path)
    return path


def _cells(lines: list[str], replaced: list[str]) -> Html | None:
    if not lines and not replaced:
        return None
    return join(
        tag("h2", "The cells of the table"),
        paragraph(lines[0]) if lines else None,
        items(lines[1:] + replaced) if lines[1:] + replaced else None,
    )


def _certificates(model: Any, certificate: Certificate) -> list[Certificate]:
    """Return the certificates whose free statistics describe this model: its own or its last step's."""
    if isinstance(model, PrivatePipeline) and not certificate.free_statistics:
        return [getattr(model.steps_[-1][1], "certificate_", certificate)]
    return [certificate]


def _domain(model: Any, certificate: Certificate) -> Any:
    """Return the declared ranges: those of the model, or of what a pipeline fits to the same columns."""
    if isinstance(model, PrivatePipeline):
        *before, (_, last) = model.steps_
        if all(isinstance(step, PrivateImputer) for _, step in before):
            certificate = getattr(last, "certificate_", certificate)
    return certificate.public.get("domain")


def _extra(model: Any, view: View | None, statistics: Mapping[str, Any]) -> list[Figure]:
    """Return other numbers about a model's quality that follow from its releases."""
    found: list[Figure] = []
    if isinstance(model, PrivateSearchCV) and model.best_score_ is not None:
        found.append(Figure("best_score", "score by which the model was chosen", model.best_score_))
    if view is None or any(f.kind == "errors" for f in free_figures(statistics)):
        return found  # the quantiles of the errors say more
    spread = spread_of(model, view)
    for j, value in enumerate(() if spread is None else spread.tolist()):
        target = f", target {j + 1}" if spread is not None and len(spread) > 1 else ""
        name = f"standard deviation that the model assumes for the errors{target}"
        found.append(Figure("spread", name, value))
    return found
