from mpmath import exp, mpf, sqrt
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestHDP(CurveContract):
    curve = pp.HDP
    parameters = (2**-18, 2**-7, 0.01, 0.5, 3)
    domain = (0.0, float("inf"))
    exponential = ("value", "ratio", "derivative", "divided_difference", "parameter_derivative")
    @staticmethod
    def exponent(points, theta):
        return theta/max(points) if max(points) > 0 else 0

    @staticmethod
    def value(p, theta):
        return exp(-theta/p) if p > 0 else mpf(0)
    @staticmethod
    def derivative(p, theta):
        return theta*exp(-theta/p)/p**2 if p > 0 else mpf(0)
    @staticmethod
    def parameter_derivative(p, theta):
        return -exp(-theta/p)/p if p > 0 else mpf(0)
