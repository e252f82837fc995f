from mpmath import exp, mpf, sqrt, e, ceil, floor, nint,log
import powerpool as pp
import warnings
from tests.contracts.curve import CurveContract

def eta(t):
    return mpf(1)/2 + sqrt(mpf(1)/4+(1/(t*(e-1))-1/e)**2)
def deta(t):
    x = 1/(t*(e-1))-1/e
    return x/sqrt(mpf(1)/4+x**2) * (-1/(t**2*(e-1)))

class Base(CurveContract):
    curve = pp.FAHDP
    parameters = (0.01, 2**-7, 0.3125, 0.5, 0.96875, 1, 1.25, 1.75, 2, 3.7)
    domain = (0.0, 1.0)
    @classmethod
    def h(cls, t):
        return {"identity": (eta, lambda t: t), "round": (lambda t: nint(eta(t)), nint), "ceil": (lambda t: ceil(eta(t)), floor)}[cls.options["rounding"]][t>=1](t)

    @classmethod
    def value(cls, p, t):
        return exp(-t)*(1-(1-p)**cls.h(t)) if t < 1 else exp(-t)*p**cls.h(t)
    @classmethod
    def derivative(cls, p, t):
        h = cls.h(t)
        return exp(-t)*h*(1-p)**(h-1) if t < 1 else exp(-t)*h*p**(h-1)
    @classmethod
    def parameter_derivative(cls, p, t):
        h = cls.h(t)
        out = -cls.value(p, t)
        if cls.options["rounding"] == "identity":
            if t < 1:
                out += exp(-t)*(-(1-p)**h*log(1-p)*deta(t) if p < 1 else 0)
            else:
                out += exp(-t)*(p**h*log(p) if p > 0 else 0)
        return out
    @classmethod
    def learnable(cls, theta, dtype=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().learnable(theta, dtype)
class TestIdentity(Base):
    options = {"rounding": "identity"}
    exponential = ("derivative", "divided_difference", "parameter_derivative")
    @staticmethod
    def exponent(points, t):
        return eta(t)*abs(log(1-min(points))) if t<1 and min(points)<1 else 0
class TestRound(Base):
    options = {"rounding": "round"}
class TestCeil(Base):
    options = {"rounding": "ceil"}
