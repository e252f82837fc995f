from mpmath import exp, mpf, sqrt
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestSigmE(CurveContract):
    curve = pp.SigmE
    parameters = (0.125, 0.3, 1, 10, 50, 1000)
    domain = (-float("inf"), float("inf"))
    exponential = ("derivative", "divided_difference", "parameter_derivative")
    @staticmethod
    def exponent(points, theta):
        a, b = min(points), max(points)
        return theta*min(abs(a),abs(b)) if a*b > 0 else 0

    @staticmethod
    def value(p, theta):
        return 2/(1+exp(-theta*p))-1 if p > 0 else 1-2/(1+exp(theta*p))
    @staticmethod
    def derivative(p, theta):
        x = exp(-theta*abs(p))
        return 2*theta*x/(1+x)**2
    @staticmethod
    def parameter_derivative(p, theta):
        x = exp(-theta*abs(p))
        return 2*p*x/(1+x)**2
