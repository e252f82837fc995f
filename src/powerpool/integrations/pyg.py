r"""Aggregations for PyTorch Geometric: one power-normalized vector per graph from the features of its nodes.

They can be used wherever PyG accepts an ``Aggregation``: as the readout of a graph (``pool(x, batch)``), in
``MultiAggregation``, in ``MessagePassing(aggr=...)``. After importing this module PyG also resolves their names:
``aggr="second_order"`` with ``aggr_kwargs={"channels": 64, "curve": "maxexp", "out_channels": 64}``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from powerpool import curves, functional
from powerpool.checks import require_beta, require_finite, require_floating, values_are_checked
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, DomainError, DTypeError, ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.linalg.precision import as_float64, at_least_float32, without_autocast
from powerpool.linalg.trace import Terms, make_terms
from powerpool.moments.segments import segment_autocorrelation, segment_mean
from powerpool.solvers import FeatureSolver, Solver, resolve
from powerpool.solvers.pool import require_representable, spectral_moment
from powerpool.vectorize import to_vector

try:
    # At module level because the classes below are subclasses; only this module needs the package.
    from torch_geometric.nn import aggr
    from torch_geometric.nn.aggr import Aggregation
except ModuleNotFoundError as error:
    if error.name != "torch_geometric":
        raise
    raise ModuleNotFoundError(
        "powerpool.integrations.pyg needs torch_geometric, which is not installed: pip install 'powerpool[graph]'.",
        name=error.name,
    ) from error


class _PowerAggregation(Aggregation):
    """The part that both aggregations share: checks, and the curve with its initial parameter."""

    def __init__(self, channels: int, curve: Curve | str | None = None, *, check: bool | None = None) -> None:
        super().__init__()
        if channels < 1:
            raise ArgumentError(f"{type(self).__name__} needs channels >= 1 (got {channels}).")
        self.channels = channels
        self.curve = None if curve is None else curves.resolve(curve)
        self.check = check
        self._start = {name: value.detach().clone() for name, value in self.named_parameters()}

    @property
    def out_features(self) -> int:
        """The length of the vector of each graph."""
        return self.channels

    @property
    def out_channels(self) -> int:
        """The same, by its name in PyG."""
        return self.out_features

    def reset_parameters(self) -> None:
        """Reset a learnable parameter of the curve to its initial value."""
        for name, start in self._start.items():
            self.get_parameter(name).data.copy_(start)

    def __call__(
        self,
        x: Tensor,  # shape: (N, C)
        index: Tensor | None = None,  # shape: (N,)
        ptr: Tensor | None = None,  # shape: (G + 1,)
        dim_size: int | None = None,
        dim: int = -2,
        **kwargs: Any,
    ) -> Tensor:  # shape: (G, out_features)
        """Check the input, then call :meth:`forward`."""
        # Before the checks of PyG, whose messages do not say what to do.
        self._require_rows(x, dim)
        if index is not None:
            self._require_index(index, x, dim_size)
        if ptr is not None:
            self._require_ptr(ptr, x)
        if values_are_checked(x, self.check):
            require_finite(x, "x")
        return super().__call__(x, index, ptr, dim_size, dim, **kwargs)

    def __repr__(self) -> str:
        return nn.Module.__repr__(self)  # that of PyG shows only the name

    def _require_rows(self, x: Tensor, dim: int) -> None:
        require_floating(x, "x")
        if x.ndim != 2 or x.shape[1] != self.channels or dim not in (-2, 0):
            raise ShapeError(
                f"{type(self).__name__}({self.channels}) takes node features x of shape (nodes, {self.channels}) and "
                f"dim=-2 (got shape {tuple(x.shape)} and dim={dim}). "
                "Build it with the channels of the layer before it, and flatten other dimensions first."
            )

    def _require_index(self, index: Tensor, x: Tensor, dim_size: int | None) -> None:
        _require_int64(index, "index", "the graph of each node", x)
        if index.shape != x.shape[:1]:
            raise ShapeError(
                f"index must have shape (nodes,) = ({x.shape[0]},), the graph of each row of x "
                f"(got {tuple(index.shape)} for x of shape {tuple(x.shape)})."
            )
        if index.numel() and values_are_checked(x, self.check):
            low, high = (int(bound) for bound in torch.aminmax(index))
            if low < 0 or (dim_size is not None and high >= dim_size):
                bound = "dim_size)" if dim_size is None else f"dim_size) = [0, {dim_size})"
                raise DomainError(
                    f"index must lie in [0, {bound} (got {low} to {high}). "
                    "Number the graphs from 0, and pass the number of graphs as dim_size."
                )

    def _require_ptr(self, ptr: Tensor, x: Tensor) -> None:
        _require_int64(ptr, "ptr", "the first node of each graph, then the number of nodes", x)
        if ptr.ndim != 1 or ptr.numel() == 0:
            raise ShapeError(f"ptr must have shape (graphs + 1,) (got {tuple(ptr.shape)}).")
        if values_are_checked(x, self.check) and not (
            int(ptr[0]) == 0 and int(ptr[-1]) == x.shape[0] and bool((ptr[1:] >= ptr[:-1]).all())
        ):
            raise DomainError(
                f"ptr must rise from 0 to the number of nodes, {x.shape[0]} (got {ptr.tolist()}). "
                "With nodes in another order pass index."
            )


class SecondOrderAggregation(_PowerAggregation):
    r"""Power-normalized second-order pooling of the nodes of each graph.

    .. math:: (N, C) \to \operatorname{vec}\, g(M_s) \in \mathbb{R}^{C(C+1)/2}, \qquad
              M_s = \frac{1}{N_s} \sum_{n \in s} \bar\phi_n \bar\phi_n^T, \qquad \bar\phi_n = \phi_n - \beta \mu_s

    for each graph s of the batch: :func:`powerpool.second_order_pool` of its nodes, as the upper triangle with
    off-diagonal entries times sqrt 2. A graph without nodes gives the zero vector, as in PyG.

    Nodes are padded to the largest graph only if that is cheap: if every graph of the batch has fewer nodes than
    channels, a padded batch is smaller than the resulting matrices, and allows the Gram form, which
    :func:`powerpool.select_solver` then chooses as for any features. For all other batches moments are formed by
    segment, and ``solver="auto"`` is the choice of :func:`powerpool.select_solver` for a matrix. The size of the
    largest graph is read on the CPU; on other devices reading would synchronise, so pass it as ``max_num_elements``.

    With ``mean="concat"`` the mean of the nodes is appended, which a covariance loses: it is zero if all nodes of a
    graph are alike. Each part v, matrix and mean, becomes :math:`v / \sqrt{1 + \lVert v \rVert^2}`. For features of
    unit scale, as after batch normalization, both then have norms near 1, and neither drowns the other. Division by the
    norm itself, as for the class token of :class:`powerpool.nn.SecondOrderPool1d`, would turn the round-off of a
    covariance of zero into a unit vector; here it stays near zero, and no gradient grows.

    Layers that expect as many channels as they pass, such as ``SAGEConv``, need ``out_channels``: a linear layer
    without bias, so that a graph without nodes stays zero.

    Args:
        channels: C of the node features (N, C).
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        beta: the share of the mean of the graph that is removed, 0 (autocorrelation) to 1 (covariance).
        solver: see :mod:`powerpool.functional`; ``"gram"`` if every graph has fewer nodes than channels.
        mean: ``"concat"`` to append the mean of the nodes, or None.
        out_channels: the length of the vector after a learnt projection; None for no projection.
        eps, check, trace_power, slope: see :mod:`powerpool.functional`.

    Example:
        >>> import torch, powerpool as pp
        >>> from powerpool.integrations.pyg import SecondOrderAggregation
        >>> pool = SecondOrderAggregation(64, pp.MaxExp(eta=50))
        >>> batch = torch.tensor([0, 0, 0, 1, 1])  # five nodes of two graphs
        >>> pool(torch.rand(5, 64), batch).shape, pool.out_features
        (torch.Size([2, 2080]), 2080)
    """

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        mode: Mode = "spectral",
        beta: float = 0.0,
        solver: str | Solver = "auto",
        *,
        mean: Literal["concat"] | None = None,
        out_channels: int | None = None,
        eps: float = 1e-6,
        check: bool | None = None,
        trace_power: float = 0.0,
        slope: float = 0.0,
    ) -> None:
        super().__init__(channels, curve, check=check)
        require_choice(mode, MODES, "mode")
        require_beta(beta)
        functional.require_pool_solver(solver, self.curve, mode)
        make_terms(eps, trace_power, slope, torch.float32)
        self.mode: Mode = mode
        self.beta, self.solver = beta, solver
        self.eps, self.trace_power, self.slope = eps, trace_power, slope
        require_choice(mean or "concat", ("concat",), "mean")
        if out_channels is not None and out_channels < 1:
            raise ArgumentError(f"out_channels must be at least 1, or None for no projection (got {out_channels}).")
        self.mean = mean
        self.projection = None
        self.projection = nn.Linear(self.out_features, out_channels, bias=False) if out_channels else None

    @property
    def out_features(self) -> int:
        """The length of the vector of each graph: C(C+1)/2, C more with the mean, or ``out_channels``."""
        if self.projection is not None:
            return self.projection.out_features
        return self.channels * (self.channels + 1) // 2 + (self.channels if self.mean else 0)

    def reset_parameters(self) -> None:
        """Reset a learnable parameter of the curve, and draw a new projection."""
        super().reset_parameters()
        if self.projection is not None:
            self.projection.reset_parameters()

    def forward(
        self,
        x: Tensor,  # shape: (N, C)
        index: Tensor | None = None,  # shape: (N,)
        ptr: Tensor | None = None,  # shape: (G + 1,)
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:  # shape: (G, out_features)
        """Return one vector per graph.

        Args:
            x: node features.
            index: the graph of each node, in any order; without ``index`` and ``ptr`` all nodes form one graph.
            ptr: instead of ``index`` for sorted nodes, the first node of each graph, then the number of nodes.
            dim_size: the number of graphs; by default the largest index plus one.
            dim: -2.
            max_num_elements: the nodes of the largest graph, for devices that reading it would synchronise.
        """
        index, graphs = _index_of(x, index, ptr, dim_size)
        if x.shape[0] == 0:
            return _zeros(x, graphs, self.out_features)
        rows = at_least_float32(x)
        sizes = index.new_zeros(graphs).index_add(0, index, torch.ones_like(index))  # (G,)
        means = segment_mean(rows, index, graphs, check=False) if self.beta or self.mean else None  # (G, C)
        if means is not None and self.beta:
            rows = rows - self.beta * means.index_select(0, index)
        largest = int(sizes.max()) if values_are_checked(index, None) else max_num_elements
        if largest is not None and largest < self.channels:
            matrix = self._padded(rows, index, sizes, largest)
        else:
            matrix = self._by_segment(rows, index, graphs, largest)
        if self.curve is not None and self.curve.adds_eps and self.mode == "elementwise":
            # (0 + eps)^gamma is not zero, as it must be for a graph without nodes.
            matrix = torch.where((sizes > 0)[:, None, None], matrix, 0.0)
        vector = to_vector(matrix)
        if means is not None and self.mean:
            vector = torch.cat([_soft_normalize(part) for part in (vector, means)], dim=-1)
        vector = vector.to(x.dtype)
        if values_are_checked(x, self.check):
            require_representable(vector, self.curve, self._terms, x, "features")
        return self.projection(vector) if self.projection else vector

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        mean = f"mean={self.mean!r}, " if self.mean else ""
        solver = f"mode={self.mode!r}, solver={self.solver!r}"
        return f"{self.channels}, beta={self.beta}, eps={self.eps}, {solver}, {mean}out_features={self.out_features}"

    @property
    def _options(self) -> dict[str, Any]:
        return {"eps": self.eps, "check": self.check, "trace_power": self.trace_power, "slope": self.slope}

    @property
    def _terms(self) -> Terms:
        return make_terms(self.eps, self.trace_power, self.slope, torch.float32)

    def _padded(self, rows: Tensor, index: Tensor, sizes: Tensor, largest: int) -> Tensor:  # shape: (G, C, C)
        # Rows are multiplied by sqrt(P / N_s) and padded with zeros to P, so the mean over P locations is the mean over
        # the graph. This needs no mask, and a graph without nodes is a graph of zeros.
        graphs, padded = sizes.shape[0], max(largest, 1)
        weight = (padded / sizes.clamp(min=1).to(rows.dtype)).sqrt()  # (G,)
        # A graph larger than max_num_elements becomes NaN instead of a sum over some of its nodes.
        weight = torch.where(sizes > padded, torch.nan, weight)
        slot = index * padded + _position(index, sizes).clamp(max=padded - 1)  # (N,)
        weighted = rows * weight.index_select(0, index).unsqueeze(-1)
        filled = rows.new_zeros(graphs * padded, rows.shape[1]).index_copy(0, slot, weighted)
        features = filled.view(graphs, padded, -1).mT
        return functional.second_order_pool(features, self.curve, self.mode, solver=self.solver, **self._options)

    def _by_segment(self, rows: Tensor, index: Tensor, graphs: int, largest: int | None) -> Tensor:  # (G, C, C)
        self._require_matrix_solver(largest)
        if self.mode == "spectral" and self.curve is not None and self.curve.needs_float64:
            rows = as_float64(rows)
        moment = segment_autocorrelation(rows, index, graphs, check=self.check)
        terms, checked = self._terms, values_are_checked(rows, self.check)
        if self.curve is None and not terms.has_residual:
            return moment
        if self.mode == "elementwise" and self.curve is not None:
            return functional.elementwise(moment, self.curve, **self._options)
        with without_autocast(moment):
            if self.curve is None:
                return terms.add_residual(moment, terms.divide_matrix(moment, None, checked))
            solver = functional.choose_matrix_solver(self.solver, self.curve, moment)
            return spectral_moment(moment, self.curve, solver, terms, checked, is_positive=True)

    def _require_matrix_solver(self, largest: int | None) -> None:
        if self.solver == "auto" or not isinstance(resolve(self.solver), FeatureSolver):
            return
        if largest is None:
            raise ArgumentError(
                "solver 'gram' needs the size of the largest graph, which is not read if that would synchronise or "
                "cannot be traced. Pass max_num_elements, or build the aggregation with solver='auto'."
            )
        raise ArgumentError(
            f"solver 'gram' needs fewer nodes than channels in every graph (got {largest} nodes, {self.channels} "
            "channels). Use solver='auto', which takes the Gram form where it can, or 'eigen' or 'squaring'."
        )


class FirstOrderPowerAggregation(_PowerAggregation):
    r"""The mean of the nodes of each graph, then a curve.

    .. math:: (N, C) \to \mathbb{R}^{C}, \qquad \psi_{sk} = g\Bigl(\frac{1}{N_s} \sum_{n \in s} \phi_{nk}\Bigr)

    for each graph s of the batch: :func:`powerpool.first_order_pool` of its nodes. A graph without nodes gives the zero
    vector, as in PyG. The means are not rescaled: for MaxExp and FAHDP scale the features to [0, 1] first.

    Args:
        channels: C of the node features (N, C).
        curve: a curve, its name, or None for the plain mean.
        check: see :mod:`powerpool.functional`.

    Example:
        >>> import torch, powerpool as pp
        >>> from powerpool.integrations.pyg import FirstOrderPowerAggregation
        >>> pool = FirstOrderPowerAggregation(2, pp.AsinhE(gamma=1.0))
        >>> pool(torch.tensor([[1.0, 0.0], [3.0, 0.0], [4.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor([[1.4436, 0.0000],
                [2.0947, 0.8814]])
    """

    def forward(
        self,
        x: Tensor,  # shape: (N, C)
        index: Tensor | None = None,  # shape: (N,)
        ptr: Tensor | None = None,  # shape: (G + 1,)
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:  # shape: (G, C)
        """Return one vector per graph; arguments as in :meth:`SecondOrderAggregation.forward`."""
        index, graphs = _index_of(x, index, ptr, dim_size)
        if x.shape[0] == 0:
            return _zeros(x, graphs, self.out_features)
        means = segment_mean(at_least_float32(x), index, graphs, check=self.check)
        # Each mean is a set of one location.
        return functional.first_order_pool(means.unsqueeze(-1), self.curve, check=self.check).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        return f"{self.channels}, out_features={self.out_features}"


def _require_int64(tensor: Tensor, name: str, what: str, x: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.int64:
        given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise DTypeError(f"{name} must be an int64 tensor, {what} (got {given}). Use torch.as_tensor({name}).long().")
    if tensor.device != x.device:
        raise ArgumentError(f"{name} must be on the device of x, {x.device} (got {tensor.device}). Use {name}.to(...).")


def _index_of(x: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None) -> tuple[Tensor, int]:
    """Return the graph of each node, and the number of graphs."""
    if index is None and ptr is not None:
        return torch.repeat_interleave(ptr.diff(), output_size=x.shape[0]), ptr.shape[0] - 1
    if index is None:
        index = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    if dim_size is None:  # __call__ passes it; a direct call of forward may not
        dim_size = int(index.max()) + 1 if index.numel() else 0
    return index, dim_size


def _position(index: Tensor, sizes: Tensor) -> Tensor:  # shape: (N,), (G,) -> (N,)
    """Return the number of each node in its graph, from 0."""
    first = sizes.cumsum(0) - sizes  # (G,), in sorted nodes
    place = torch.arange(index.shape[0], device=index.device)  # (N,)
    if values_are_checked(index, None) and bool((index[1:] >= index[:-1]).all()):
        return place - first.index_select(0, index)
    order = torch.argsort(index, stable=True)
    return torch.empty_like(place).index_copy(0, order, place - first.index_select(0, index.index_select(0, order)))


def _soft_normalize(part: Tensor) -> Tensor:  # shape: (G, F)
    """Return v / sqrt(1 + |v|^2)."""
    square = as_float64(part).square().sum(-1, keepdim=True)  # overflows in float32 from a norm of 2e19 on
    return (part / (1 + square).sqrt()).to(part.dtype)


def _zeros(x: Tensor, graphs: int, features: int) -> Tensor:  # shape: (0, C) -> (G, features)
    """Return zeros for graphs without any node, connected to the empty input for its gradient."""
    return x.new_zeros(graphs, features) + x.sum()


# The resolver of PyG looks names up in this module of PyG, and has no other way to learn of a class.
for _kind in (SecondOrderAggregation, FirstOrderPowerAggregation):
    setattr(aggr, _kind.__name__, _kind)
