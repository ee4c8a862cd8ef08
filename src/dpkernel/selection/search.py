"""Private model selection with the interface of scikit-learn's searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.blocks import is_stream
from dpkernel.data.cells import take_rows
from dpkernel.data.weights import refuse_weights
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.estimators.surroundings import CountedClones, count_fit
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours, is_whole, no_add_remove
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real, Whole, check_parameters
from dpkernel.privacy.certificate import Certificate, Release, of_people
from dpkernel.privacy.ledger import OF_PEOPLE, Ledger
from dpkernel.privacy.noise import Noise, NoiseSource, Plan, SeededNoise
from dpkernel.privacy.profiles import StoppingLaw
from dpkernel.selection.candidates import (
    blank_table,
    free_choices,
    in_memory,
    list_candidates,
    sizes_of,
)
from dpkernel.selection.fits import Fits
from dpkernel.selection.losses import RowLoss, default_loss, row_loss, target_of
from dpkernel.selection.plan import (
    FEW,
    SearchPlan,
    plan_exponential,
    plan_stopping,
    refuse_nothing_left,
    resolve_law,
)
from dpkernel.selection.runs import LABEL, Search, quiet
from dpkernel.selection.score import refuse_questions

_SCORINGS = {
    "neg_mean_squared_error": "mse",
    "r2": "mse",  # which ranks candidates in the same order
    "neg_mean_absolute_error": "mae",
    "neg_mean_pinball_loss": "pinball",
    "accuracy": "accuracy",
    "neg_log_loss": "log_loss",
}

_NO_WEIGHTS = (
    "a score is a mean over all rows, and a weighted one would need another release, that of the sum of"
    " the weights. Search without weights, and fit the chosen parameters with them."
)


class PrivateSearchCV(MetaEstimatorMixin, CountedClones):
    r"""Choose among candidates and fit the chosen one, under one (epsilon, delta).

    Candidates are trained on most rows and scored on the others. There is noise on every fit, and on
    every score or on the choice. The whole search is one spend, recorded before any noise is drawn.

    Parameters
    ----------
    estimator : private estimator
        The estimator whose parameters are searched. The search sets its ``epsilon``, ``delta``,
        ``ledger`` and ``noise``. An estimator of your own must refuse rows before it asks its ledger, or
        not at all; see Notes.
    param_distributions : dict or list of dicts
        The values to try, as in scikit-learn's ``GridSearchCV``. Distributions (objects with ``rvs``)
        need ``n_candidates``. All of this is public and must not be made from the data.
    epsilon, delta : float
        The budget of the whole search. The certificate claims at most this.
    n_candidates : int, optional
        If given, this many random candidates of the grid or the distributions are tried.
    strategy : {"auto", "random-stopping", "exponential", "free"}
        "random-stopping" trains random candidates a random number of times and releases the run with
        the best private score. Its cost hardly grows with the number of candidates. "exponential"
        trains all candidates, whose costs add up, and chooses one by the exponential mechanism. "free"
        computes the choice from the released matrices of folds. It is possible for
        ``regularisation`` and, with eigenfeatures, ``n_features`` of ``PrivateKernelRidge``. "auto"
        takes "free" if it is possible, "exponential" for up to 8 candidates and "random-stopping" for
        more.
    scoring : str
        "auto" (squared error, pinball loss or accuracy, depending on the kind of estimator),
        "neg_mean_squared_error", "r2" (the same choice), "neg_mean_absolute_error",
        "neg_mean_pinball_loss", "accuracy" or "neg_log_loss".
    loss_bound : float, optional
        The losses of rows are clipped to this bound. By default it is a quarter of the largest squared
        error or half of the largest absolute error that ``y_bounds`` allow, and 5 for log-loss.
    validation : float
        The share of the rows that are used for scores. Which rows these are follows from their
        positions, so rows must not be sorted or stratified by what they contain.
    refit : "auto" or bool
        Whether to fit the chosen candidate again on all rows. The cost is part of the plan. "auto" does
        this for "exponential"; with "random-stopping" the model of the best run is released as it is.
    law : {"auto", "logarithmic", "geometric", "poisson"} or StoppingLaw
        The distribution of the number of runs. "auto" is Poisson for few runs and geometric for many.
    mean_runs : "auto" or float
        The expected number of runs of random stopping. "auto" is twice the number of candidates. The
        Poisson law needs at least 1.
    ledger : Ledger, optional
        The ledger that records the one spend. By default it is the one of the estimator.
    noise : NoiseSource, optional
        The source of noise for all fits and the choice; by default the entropy of the operating system.
        The ``noise`` of the estimator is not used.
    random_state : int
        The public seed of random candidates. It has nothing to do with the noise.
    verbose : bool
        Show which candidate is fitted, with an estimate of the time that is left. Random stopping
        shows nothing, because the number of its runs is secret.

    Attributes
    ----------
    best_estimator_ : fitted estimator
        The chosen model. Its certificate is the one of the whole search.
    best_params_ : dict
        The parameters of the chosen candidate.
    best_score_ : float or None
        The released score of the best run (random stopping without refit), otherwise None.
    certificate_ : Certificate
        The guarantee of the whole search.
    plan_ : SearchPlan
        How the budget was split.
    n_features_in_, feature_names_in_, classes_
        Those of ``best_estimator_``.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the neighbours of the estimator. The number of rows, their positions, the
        candidates and the parameters are public. The number of runs and everything about the other
        candidates stay secret. A fit gets the noise that was planned for it and no more. Once that
        noise is granted, the fit must not fail because of what the rows contain, since a failure has no
        noise. The estimators of dpkernel do not fail. If another one does, the model of a blank table
        takes its place.
    Sensitivity
        A score has the range of the clipped loss as sensitivity: ``sensitivity.bounded_sum``.
    Not covered
        ``score`` on the training rows, and the time that a fit takes.

    References
    ----------
    Papernot & Steinke (2022); Liu & Talwar (2019); McSherry & Talwar (2007).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, PrivateSearchCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 1)); y = np.sin(9 * X[:, 0])
    >>> ridge = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1))
    >>> search = PrivateSearchCV(ridge, {"length_scale": [0.05, 0.2, 0.8]}, epsilon=3.0)
    >>> search.plan(5000, 1).strategy
    'exponential'
    >>> search.fit(X, y).certificate_.private
    True
    """

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "n_candidates": (Choice(None), Whole(1, 10_000)),
        "strategy": Choice("auto", "random-stopping", "exponential", "free"),
        "scoring": Choice("auto", *_SCORINGS),
        "loss_bound": (Choice(None), Real(0, math.inf)),
        "validation": Real(0, 0.5, closed_high=True),
        "refit": Choice("auto", True, False),
        "law": (Choice("auto", "logarithmic", "geometric", "poisson"), Kind(StoppingLaw)),
        "mean_runs": (Choice("auto"), Real()),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "random_state": Whole(0),
        "verbose": Choice(False, True),
    }

    best_estimator_: Any
    certificate_: Certificate

    def __init__(
        self,
        estimator: Any = None,
        param_distributions: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_candidates: int | None = None,
        strategy: str = "auto",
        scoring: str = "auto",
        loss_bound: float | None = None,
        validation: float = 0.2,
        refit: bool | str = "auto",
        law: str | StoppingLaw = "auto",
        mean_runs: float | str = "auto",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.epsilon = epsilon
        self.delta = delta
        self.n_candidates = n_candidates
        self.strategy = strategy
        self.scoring = scoring
        self.loss_bound = loss_bound
        self.validation = validation
        self.refit = refit
        self.law = law
        self.mean_runs = mean_runs
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_clone__(self) -> Any:
        found = super().__sklearn_clone__()
        if isinstance(found.estimator, PrivateEstimator):
            found.estimator._family_counted = True  # the search is
        return found

    def _given_ledger(self) -> Ledger | None:
        found: Ledger | None = self.ledger or getattr(self.estimator, "ledger", None)
        return found

    # --- before anything is spent --------------------------------------------------------------

    def plan(self, n: Any, n_columns: int | None = None) -> SearchPlan:
        """Return what a search over a table of n rows would spend. Nothing is spent and no row is read.

        ``n`` is a number of rows, or a table of which only the shape is used.
        """
        budget, relation, candidates = self._check()
        if not is_whole(n):
            n, n_columns = sizes_of(n)
        blank = partial(blank_table, self.estimator, n_columns=n_columns)
        return self._plan(int(n), blank, budget, relation, candidates)[0]

    def _check(self) -> tuple[Budget, Neighbours, list[dict[str, Any]]]:
        check_parameters(type(self).__name__, self.get_params(deep=False), self._constraints)
        set_here = {"epsilon", "delta", "ledger", "noise", "verbose", "neighbours", "bounds"}
        private = isinstance(self.estimator, PrivateEstimator)
        if not private or not set_here <= set(self.estimator.get_params(deep=False)):
            advice = "Its fits must record what they release in a ledger."
            raise ParameterError(
                parameter_message(
                    "PrivateSearchCV",
                    "estimator",
                    "a private estimator of dpkernel",
                    type(self.estimator).__name__,
                    advice,
                )
            )
        refuse_questions(self.estimator)
        relation = Neighbours.resolve(self.estimator.neighbours)
        if not relation.n_is_public:
            raise ParameterError(no_add_remove("PrivateSearchCV"))
        candidates = list_candidates(
            self.estimator, self.param_distributions, self.n_candidates, int(self.random_state)
        )
        return Budget(self.epsilon, self.delta), relation, candidates

    def _strategy(self, candidates: Sequence[Mapping[str, Any]]) -> str:
        free = free_choices(self.estimator, candidates)
        if self.strategy == "free" and free is None:
            advice = "Only 'regularisation' and leading eigenfeatures can be chosen for free."
            raise ParameterError(
                parameter_message(
                    "PrivateSearchCV",
                    "strategy",
                    "a strategy that these candidates allow",
                    self.strategy,
                    advice,
                )
            )
        if self.strategy != "auto":
            return str(self.strategy)
        if free is not None:
            return "free"
        return "exponential" if len(candidates) <= FEW else "random-stopping"

    def _plan(
        self,
        n: int,
        blank: Callable[[int], tuple[Any, Any]],
        budget: Budget,
        relation: Neighbours,
        candidates: list[dict[str, Any]],
        data: tuple[Any, Any] | None = None,
    ) -> tuple[SearchPlan, Fits]:
        """Return the plan, and the fits of the candidates that are not refused, from blank tables.

        If ``data`` are given, they are checked.
        """
        strategy = self._strategy(candidates)
        train, validation = self._rows(max(n, 1))
        sizes = {True: n, False: len(train)}
        fits = Fits(
            self.estimator, candidates, relation, lambda everything: blank(sizes[everything])
        )
        if strategy == "free":
            plan = SearchPlan("free", len(candidates), n, 0, budget, budget)
            return refuse_nothing_left(plan), fits
        if n < 2:
            raise DataError(
                f"A search needs rows to train on and rows to score on. Got n_samples={n}."
            )
        fits = fits.left_out(budget)
        if data is not None:
            fits.check(0, *data, budget, True)
        counts = len(fits), len(train), len(validation)
        if strategy == "exponential":
            again = self.refit if isinstance(self.refit, bool) else True
            by_mu = self.__dict__.get("_by_mu", self._book(relation).rule == "gaussian")
            plan = plan_exponential(budget, counts, fits.lines, relation, again, by_mu)
        else:
            law = resolve_law(self.law, self.mean_runs, len(fits))
            plan = plan_stopping(budget, counts, law, fits.lines, relation, self.refit is True)
        return refuse_nothing_left(plan), fits

    def _rows(self, n: int) -> tuple[Any, Any]:
        """Return the positions of training rows and of validation rows, both spread evenly."""
        share = float(self.validation)
        marks = np.floor(np.arange(1, n + 1) * share) > np.floor(np.arange(n) * share)
        marks[-1] = marks[-1] or not marks.any()
        return np.flatnonzero(~marks), np.flatnonzero(marks)

    # --- the search ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, groups: Any = None, **more: Any) -> PrivateSearchCV:
        """Search, and fit the chosen candidate.

        X is a table in memory (array, sparse matrix, data frame or tensor) and y its target.
        Tensors are copied to main memory. ``groups`` are the ids of the people whose rows these
        are, or ``People``: a person with all their rows is then protected instead of a single
        row. Each person becomes one record, for training or for scores, so X may then be a stream
        or a Dask table, too. There are no weights of rows. Nothing is spent if an argument or the
        grid is refused, or if any candidate refuses the data.
        """
        refuse_weights("PrivateSearchCV.fit", more, _NO_WEIGHTS)
        budget, relation, candidates = self._check()
        record = ""
        if groups is not None:
            if not is_stream(X):
                in_memory(X, y, alike=False)
            opener = clone(self.estimator)
            opener._label_shares = False  # candidates are scored on whole labels
            X, y, record = opener._records_of(X, y, groups, self.noise)
        X, y = in_memory(X, y)
        if self._strategy(candidates) == "free":
            return self._fit_free(X, y, budget, relation, candidates, record)
        search, plan, loss = self._prepared(X, y, budget, relation, candidates)
        mechanism = plan.mechanism
        assert mechanism is not None
        release = Release(LABEL, mechanism)
        ledger = self._book(relation)
        count_fit(self)
        source = self.noise.restarted() if isinstance(self.noise, SeededNoise) else self.noise
        spending = Plan.of(mechanism.profile(), LABEL)
        label = LABEL + (OF_PEOPLE if record else "")
        noise = ledger.spend(spending, label, claim=budget, neighbours=relation, noise=source)
        with quiet():
            place, model, score = search.run(mechanism, noise)
        if score is not None and plan.refit is None:
            self.best_score_: float | None = -loss.mean(-score, plan.n_validation)
            if loss.name == "accuracy":
                self.best_score_ = 1 + self.best_score_
        else:
            self.best_score_ = None
        certificate = self._certify(model, plan, release, noise, budget, record)
        self._keep(model, search.candidates[place], plan, certificate)
        return self

    def _prepared(
        self, X: Any, y: Any, budget: Budget, relation: Neighbours, candidates: list[dict[str, Any]]
    ) -> tuple[Search, SearchPlan, RowLoss]:
        """Return a search that was checked on these data, its plan and its loss; nothing is spent."""
        n, n_columns = X.shape
        blank = partial(blank_table, self.estimator, n_columns=n_columns, like=(X, y))
        loss = self._loss()
        plan, fits = self._plan(n, blank, budget, relation, candidates, (X, y))
        train, validation = self._rows(n)
        search = Search(
            fits,
            {True: (X, y), False: (take_rows(X, train), take_rows(y, train))},
            (take_rows(X, validation), take_rows(y, validation)),
            loss,
            plan,
            verbose=bool(self.verbose),
        )
        search.check()
        return search, plan, loss

    def _planned_spending(self, X: Any, y: Any) -> Plan:
        """Return what a fit to these data would ask of a ledger."""
        budget, relation, candidates = self._check()
        X, y = in_memory(X, y)
        if self._strategy(candidates) == "free":
            model, _ = self._free_model(budget, candidates)
            found: Plan = model._planned_spending(X, y)
            return found
        plan = self._prepared(X, y, budget, relation, candidates)[1]
        assert plan.mechanism is not None
        return Plan.of(plan.mechanism.profile(), LABEL)

    def _fit_free(
        self,
        X: Any,
        y: Any,
        budget: Budget,
        relation: Neighbours,
        candidates: list[dict[str, Any]],
        record: str,
    ) -> PrivateSearchCV:
        """Fit once, on folds, and compute the choice from the released matrices."""
        blank = partial(blank_table, self.estimator, n_columns=X.shape[1], like=(X, y))
        plan, _ = self._plan(X.shape[0], blank, budget, relation, candidates)
        count_fit(self)
        model, choices = self._free_model(budget, candidates)
        place = model._fit_choosing(X, y, choices, record)
        model.set_params(**candidates[place])
        self.best_score_ = None
        self._keep(model, candidates[place], plan, model.certificate_)
        return self

    def _free_model(self, budget: Budget, candidates: list[dict[str, Any]]) -> tuple[Any, Any]:
        """Return the one model that is fitted, on folds, and the choices that are read off it."""
        choices = free_choices(self.estimator, candidates)
        assert choices is not None
        model = clone(self.estimator)
        sizes = [size for _, size in choices if size is not None]
        options = {"n_features": max(sizes)} if sizes else {}
        model.set_params(
            **options,
            epsilon=budget.epsilon,
            delta=budget.delta,
            regularisation="auto",
            folds=max(2, int(model.folds)),
            ledger=self._given_ledger(),
            noise=self.noise,
        )
        model._family_counted = True  # the search is
        return model, choices

    def _keep(
        self, model: Any, params: Mapping[str, Any], plan: SearchPlan, certificate: Certificate
    ) -> None:
        model.set_params(
            ledger=self._given_ledger(), noise=self.noise, verbose=self.estimator.verbose
        )
        model.certificate_ = certificate
        self.best_estimator_, self.best_params_ = model, dict(params)
        self.certificate_, self.plan_ = certificate, plan

    def _certify(
        self,
        model: Any,
        plan: SearchPlan,
        release: Release,
        noise: Noise,
        budget: Budget,
        record: str,
    ) -> Certificate:
        own: Certificate = model.certificate_
        public = of_people(own.public, record) if record else own.public
        return Certificate.issue(
            f"PrivateSearchCV({own.subject})",
            budget,
            [release],
            noise,
            public={**public, "selection": plan.to_dict()},
            free_statistics=own.free_statistics,
            reference=f"{release.mechanism.reference}; {own.reference}",
            invalid_because=() if own.valid else own.reasons,
            not_private_because=own.reasons if own.valid and noise.private > own.private else (),
        )

    def _loss(self) -> RowLoss:
        own = default_loss(self.estimator)
        name = own if self.scoring == "auto" else _SCORINGS[self.scoring]
        target = target_of(self.estimator, None)
        quantile = getattr(self.estimator, "quantile", 0.5)
        found = row_loss(name, target=target, quantile=quantile, owner="PrivateSearchCV")
        if self.loss_bound is not None:
            bound = float(self.loss_bound) if name != "accuracy" else 1.0
        else:  # large errors are rare, so clipping them costs little and saves noise
            bound = found.bound * {"mse": 0.25, "mae": 0.5, "pinball": 0.5}.get(name, 1.0)
        return RowLoss(name, bound, found.of_rows)

    def _book(self, relation: Neighbours) -> Ledger:
        given = self._given_ledger()
        return Ledger(neighbours=relation) if given is None else given

    # --- methods of the chosen model -------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the predictions of the chosen model."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the chosen model."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict_proba(X))

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """Return the decision values of the chosen model."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.decision_function(X))

    def score(self, X: Any, y: Any) -> float:
        """Return the score of the chosen model, without noise.

        For rows that must stay private, use ``private_score``.
        """
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))

    def _to_state(self) -> Any:
        """Raise, because the chosen model is saved instead of the search."""
        raise ParameterError(
            "A search can't be saved to a file. Save its best_estimator_, whose certificate is that of"
            " the whole search."
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("n_features_in_", "feature_names_in_", "classes_"):
            return getattr(self.__dict__.get("best_estimator_"), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            own = get_tags(self.estimator)
            kinds = ("estimator_type", "classifier_tags", "regressor_tags")
            for name in (*kinds, "input_tags", "target_tags"):
                setattr(tags, name, getattr(own, name))
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        return tags
