from mpmath import log, mpf
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestMaxExp(CurveContract):
    curve = pp.MaxExp
    parameters = (1, 1.0078125, 1.3, 1.5, 2, 2.5, 20, 50, 50.25, 1000)
    domain = (0.0, 1.0)

    @staticmethod
    def value(p, theta):
        return 1-(1-p)**theta
    @staticmethod
    def derivative(p, theta):
        return theta*(1-p)**(theta-1)
    @staticmethod
    def parameter_derivative(p, theta):
        return -(1-p)**theta * log(1-p) if p < 1 else mpf(0)
