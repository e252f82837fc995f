from mpmath import log, mpf, sqrt
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestAsinhE(CurveContract):
    curve = pp.AsinhE
    parameters = (0.125, 0.3, 1, 10, 1000)
    domain = (-float("inf"), float("inf"))

    @staticmethod
    def value(p, theta):
        x = theta*abs(p)
        y = log(x+sqrt(1+x**2))
        return y if p >=0 else -y
    @staticmethod
    def derivative(p, theta):
        return theta/sqrt(1+theta**2*p**2)
    @staticmethod
    def parameter_derivative(p, theta):
        return p/sqrt(1+theta**2*p**2)
