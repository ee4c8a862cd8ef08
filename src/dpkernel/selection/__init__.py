"""Choose a model and score it, privately."""

from dpkernel.privacy.profiles import StoppingLaw
from dpkernel.selection.plan import SearchPlan
from dpkernel.selection.score import PrivateScore, private_score
from dpkernel.selection.search import PrivateSearchCV

__all__ = ["PrivateScore", "PrivateSearchCV", "SearchPlan", "StoppingLaw", "private_score"]
