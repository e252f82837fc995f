from mpmath import log, mpf
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestGamma(CurveContract):
    curve = pp.Gamma
    parameters = (0.1, 0.125, 0.5, 0.9, 1, 1.5, 2, 3, 7.3, 50.25)
    domain = (0.0, float("inf"))

    @staticmethod
    def value(p, theta):
        return p**theta
    @staticmethod
    def derivative(p, theta):
        if p == 0:
            return mpf("inf") if theta < 1 else mpf(theta == 1)
        return theta * p ** (theta - 1)
    @classmethod
    def slope(cls, p, theta):
        return mpf(0) if p == 0 and theta < 1 else cls.derivative(p, theta)
    @staticmethod
    def parameter_derivative(p, theta):
        return p**theta * log(p) if p > 0 else mpf(0)
