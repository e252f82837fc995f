"""The theory of the paper as functions: theorems, remarks, and links between curves.

Labels such as "Eq. eta_par" are those of the paper's LaTeX source. ``docs/claims.md`` lists every claim with its
function and its test, ``docs/errata.md`` the errors in the printed paper.

Example:
    >>> from powerpool import theory
    >>> round(theory.t_of_eta(50.0), 6)  # HDP of this time is below MaxExp(50)
    0.011524
"""

from powerpool.theory.derivatives import gamma_gradient, maxexp_gradient
from powerpool.theory.gaps import (
    Line,
    TouchingPoints,
    alpha_of_eta,
    auxiliary_line,
    eps1,
    eps2,
    eps3,
    eps4,
    fahdp_line,
    touching_points,
    y_of_eta,
)
from powerpool.theory.heat import (
    LoopyGraph,
    gamma_flow,
    gamma_flow_rate,
    graph_hdp,
    heat_kernel,
    log_laplacian,
    loopy_graph,
    maxexp_flow,
    maxexp_flow_rate,
)
from powerpool.theory.kernels import moment_kernel, polynomial_kernel, rbf_kernel, rbf_riemann_bound, rbf_riemann_sum
from powerpool.theory.links import (
    combined_bound,
    eta_bar_of_t,
    eta_of_eta_prime,
    eta_of_t,
    eta_prime_of_eta,
    eta_slope,
    eta_tilde_of_t,
    gamma_of_t,
    t_of_eta,
    t_of_eta_bar,
    t_of_gamma,
    t_tilde_of_eta_bar,
)
from powerpool.theory.probability import (
    Posterior,
    at_least_one,
    at_least_one_sum,
    detection_variance_ratio,
    kappa,
    kappa_prime,
    likelihood_of_any,
    maxexp_of_mean,
    mixture_posterior,
    sigme_eta_of_sigma,
    signed_difference,
    signed_difference_sum,
)
from powerpool.theory.sigme import alignment_point, error_point, sigme_maxexp_distance
from powerpool.theory.spectrum import leading_variance, push_forward

__all__ = [
    "Line",
    "LoopyGraph",
    "Posterior",
    "TouchingPoints",
    "alignment_point",
    "alpha_of_eta",
    "at_least_one",
    "at_least_one_sum",
    "auxiliary_line",
    "combined_bound",
    "detection_variance_ratio",
    "eps1",
    "eps2",
    "eps3",
    "eps4",
    "error_point",
    "eta_bar_of_t",
    "eta_of_eta_prime",
    "eta_of_t",
    "eta_prime_of_eta",
    "eta_slope",
    "eta_tilde_of_t",
    "fahdp_line",
    "gamma_flow",
    "gamma_flow_rate",
    "gamma_gradient",
    "gamma_of_t",
    "graph_hdp",
    "heat_kernel",
    "kappa",
    "kappa_prime",
    "leading_variance",
    "likelihood_of_any",
    "log_laplacian",
    "loopy_graph",
    "maxexp_flow",
    "maxexp_flow_rate",
    "maxexp_gradient",
    "maxexp_of_mean",
    "mixture_posterior",
    "moment_kernel",
    "polynomial_kernel",
    "push_forward",
    "rbf_kernel",
    "rbf_riemann_bound",
    "rbf_riemann_sum",
    "sigme_eta_of_sigma",
    "sigme_maxexp_distance",
    "signed_difference",
    "signed_difference_sum",
    "t_of_eta",
    "t_of_eta_bar",
    "t_of_gamma",
    "t_tilde_of_eta_bar",
    "touching_points",
    "y_of_eta",
]
