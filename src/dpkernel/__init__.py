"""dpkernel: private kernel models for tabular data, with a certificate anyone can verify."""
from dpkernel import mechanisms, profiles
from dpkernel.certificate import Certificate
from dpkernel.domain import Domain, Interval, Levels
from dpkernel.estimators import PrivateKernelRidge
from dpkernel.ledger import Ledger
from dpkernel.noise import OpenDPNoise, SeededNoise, SystemNoise
from dpkernel.types import Budget, Neighbours
