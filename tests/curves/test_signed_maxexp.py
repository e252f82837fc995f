from mpmath import log, mpf, sign
import powerpool as pp
from tests.contracts.curve import CurveContract

class TestSignedMaxExp(CurveContract):
    curve = pp.SignedMaxExp
    parameters = (1,  1.5, 2, 2.5, 50, 50.3)
    domain = (-1.0, 1.0)

    @staticmethod
    def value(p, theta):
        return (1-max(0,-p))**theta-(1-max(0,p))**theta
    @staticmethod
    def derivative(p, theta):
        return theta*(1-abs(p))**(theta-1)
    @staticmethod
    def parameter_derivative(p, theta):
        return -sign(p)*(1-abs(p))**theta * log(1-abs(p)) if abs(p) < 1 else mpf(0)
