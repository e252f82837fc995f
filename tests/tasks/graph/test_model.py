"""The graph classifier against an independent oracle: dense matrices, one graph at a time, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch_geometric.nn import GINConv

from powerpool.data import GraphBatch, load_graphs
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.model import GraphClassifier, recompute_statistics, sample_neighbours
from powerpool.tasks.methods import GRAPH_METHODS

EPS = 1e-6
PARAMETERS = {"eta": 7.0, "sigme_eta": 9.0, "gamma": 0.7, "asinhe_gamma": 3.0, "t": 0.05, "iterations": 4}
RECTIFIED = ("SOP+MaxExp", "SOP+Gamma")


# ---- the oracle ------------------------------------------------------------------------------------------------------


def node_features(weights: dict[str, np.ndarray], x: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """GIN0 in evaluation mode, with a dense adjacency matrix."""
    adjacency = np.zeros((len(x), len(x)))
    for source, target in edges.T:
        adjacency[target, source] += 1
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("convolutions."))
    for layer in range(layers):
        w = {name.split(".nn.")[1]: v for name, v in weights.items() if name.startswith(f"convolutions.{layer}.nn.")}
        x = x + adjacency @ x
        x = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
        x = np.maximum(x @ w["2.weight"].T + w["2.bias"], 0)
        x = (x - w["4.running_mean"]) / np.sqrt(w["4.running_var"] + 1e-5) * w["4.weight"] + w["4.bias"]
    return x


def on_spectrum(matrix: np.ndarray, curve) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    values = np.where(values < 1e-12 * max(values.max(), 1e-300), 0.0, values)
    return (vectors * np.array([curve(value) if value > 0 else 0.0 for value in values])) @ vectors.T


def newton_schulz(matrix: np.ndarray, iterations: int) -> np.ndarray:
    identity = np.eye(len(matrix))
    y, z = matrix / np.trace(matrix), identity
    for _ in range(iterations):
        w = (3 * identity - z @ y) / 2
        y, z = y @ w, w @ z
    return math.sqrt(np.trace(matrix)) * y


def normalized(method: str, m: np.ndarray, config: ModelConfig) -> np.ndarray:
    p = m / (np.trace(m) + EPS)
    eta, t = config.eta, config.t
    fahdp = math.ceil(0.5 + math.sqrt(0.25 + (1 / (t * (math.e - 1)) - 1 / math.e) ** 2))
    results = {
        "SOP": lambda: m,
        "SOP+AsinhE": lambda: np.arcsinh(config.asinhe_gamma * m),
        "SOP+SigmE": lambda: 2 / (1 + np.exp(-config.sigme_eta * p)) - 1,
        "SOP+MaxExp": lambda: 1 - (1 - p) ** eta,
        "SOP+Gamma": lambda: (m + EPS) ** config.gamma,
        "SOP+NewtonSchulz": lambda: newton_schulz(m, config.iterations),
        "SOP+SpecGamma": lambda: on_spectrum(m, lambda v: v**config.gamma),
        "SOP+SpecHDP": lambda: on_spectrum(p, lambda v: math.exp(-t / v)),
        "SOP+SpecFAHDP": lambda: on_spectrum(p, lambda v: math.exp(-t) * (1 - (1 - v) ** fahdp)),
        "SOP+SpecMaxExp": lambda: on_spectrum(p, lambda v: 1 - (1 - v) ** eta),
        "SOP+SpecMaxExpF": lambda: on_spectrum(p, lambda v: 1 - (1 - v) ** eta),
    }
    return results[method]()


FIRST_ORDER = {"GIN0": np.mean, "GIN0+Sum": np.sum, "GIN0+Max": np.max}


def graph_vector(x: np.ndarray, config: ModelConfig) -> np.ndarray:
    """The vector of one graph from its node features, one row for each node."""
    channels = x.shape[1]
    if config.method in FIRST_ORDER:
        return np.zeros(channels) if len(x) == 0 else FIRST_ORDER[config.method](x, 0)
    rows, columns = zip(*[(i, j) for i in range(channels) for j in range(i, channels)], strict=True)
    if len(x) == 0:
        return np.zeros(len(rows))
    if config.method in RECTIFIED:
        x = np.maximum(x, 0)
    x = x - config.beta * x.mean(0)
    matrix = normalized(config.method, x.T @ x / len(x), config)
    return matrix[rows, columns] * np.where(np.array(rows) == np.array(columns), 1.0, math.sqrt(2))


def oracle(model: GraphClassifier, batch: GraphBatch, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Logits and vectors."""
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    x = node_features(weights, batch.x.double().numpy(), batch.edge_index.numpy())
    owner = batch.batch.numpy()
    vectors = np.stack([graph_vector(x[owner == graph], config) for graph in range(len(batch.y))])
    hidden = np.maximum(vectors @ weights["head.0.weight"].T + weights["head.0.bias"], 0)
    return hidden @ weights["head.3.weight"].T + weights["head.3.bias"], vectors


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutag():
    return load_graphs("MUTAG", download=False)


def joined(*graphs: GraphBatch) -> GraphBatch:
    """Concatenated batches."""
    nodes = [0, *np.cumsum([graph.num_nodes for graph in graphs])]
    counts = [0, *np.cumsum([graph.num_graphs for graph in graphs])]
    parts = list(zip(graphs, nodes[:-1], counts[:-1], strict=True))
    y = torch.cat([graph.y for graph in graphs])
    batch = torch.cat([graph.batch + int(count) for graph, _, count in parts])
    ptr = torch.cat([torch.tensor([0]), batch.bincount(minlength=len(y)).cumsum(0)])
    edges = torch.cat([graph.edge_index + int(first) for graph, first, _ in parts], 1)
    return GraphBatch(torch.cat([graph.x for graph in graphs]), edges, batch, y, ptr)


def lone(channels: int, nodes: int = 1) -> GraphBatch:
    """A graph of one node, or of none, without edges."""
    x = torch.eye(channels)[:nodes]
    none = torch.zeros(2, 0, dtype=torch.long)
    return GraphBatch(
        x, none, torch.zeros(nodes, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.tensor([0, nodes])
    )


def make(config: ModelConfig, graphs, seed: int = 3) -> GraphClassifier:
    """A model with batch-norm statistics as after some training."""
    torch.manual_seed(seed)
    model = GraphClassifier(config, graphs.channels, 2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
        for start in range(0, 160, 20):
            model.train()(graphs[start : start + 20])
    return model.eval()


@pytest.mark.parametrize("hidden", [5, 30], ids=["more nodes than channels", "fewer nodes than channels"])
@pytest.mark.parametrize("method", [method for method in GRAPH_METHODS if method != "GIN0+Set2Set"])
def test_the_output_equals_the_formulas(mutag, method, hidden):
    for beta in (0.0, 0.6) if "beta" in GRAPH_METHODS[method].parameters else (0.0,):
        config = ModelConfig(method, hidden=hidden, layers=2, beta=beta, **PARAMETERS)
        model = make(config, mutag)
        single, empty = lone(mutag.channels), lone(mutag.channels, nodes=0)
        # The covariance of a single node is round-off, so that its curve is arbitrary.
        batch = joined(mutag[:6]) if beta else joined(mutag[:3], empty, single, mutag[3:6])
        batch = joined(batch, empty)
        logits, vectors = oracle(model, batch, config)
        precise = batch._replace(x=batch.x.double())
        with torch.no_grad():
            assert_close(model.pooled(batch), torch.tensor(vectors).float(), rtol=2e-3, atol=2e-3)
            model.double()
            assert_close(model.pooled(precise), torch.tensor(vectors), rtol=1e-6, atol=1e-7)
            assert_close(model(precise), torch.tensor(logits), rtol=1e-6, atol=1e-7)
        assert not vectors[-1].any()  # a graph without nodes is 0
        assert np.ptp(vectors, axis=0).max() > 0.01


def test_convolutions_are_those_of_gin0(mutag):
    model = GraphClassifier(ModelConfig("GIN0", hidden=4, layers=3), mutag.channels, 2)
    assert len(model.convolutions) == 3
    for convolution in model.convolutions:
        assert isinstance(convolution, GINConv)
        assert float(convolution.eps) == 0.0
        assert "eps" not in dict(convolution.named_parameters())


def test_with_the_same_seed_all_methods_have_the_same_convolutions(mutag):
    found = {}
    for method in ("GIN0", "GIN0+Sum", "SOP", "SOP+SigmE", "SOP+NewtonSchulz"):
        torch.manual_seed(11)
        model = GraphClassifier(ModelConfig(method, hidden=4, layers=2), mutag.channels, 2)
        found[method] = {name: value.clone() for name, value in model.convolutions.state_dict().items()}
    for method, weights in found.items():
        for name, value in weights.items():
            assert torch.equal(value, found["GIN0"][name]), (method, name)
    torch.manual_seed(12)
    other = GraphClassifier(ModelConfig("GIN0", hidden=4, layers=2), mutag.channels, 2).convolutions.state_dict()
    assert not torch.equal(other["0.nn.0.weight"], found["GIN0"]["0.nn.0.weight"])


# ---- neighbours ------------------------------------------------------------------------------------------------------


def random_edges(nodes: int = 12, count: int = 80, seed: int = 0) -> Tensor:
    pairs = [(source, target) for source in range(nodes) for target in range(nodes - 2)]  # two nodes have none
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))[:count]
    return torch.tensor(pairs)[order].T


@pytest.mark.parametrize("most", [1, 3, 7])
def test_a_sample_has_at_most_so_many_edges_into_each_node_and_keeps_their_order(most):
    edges = random_edges()
    degrees = edges[1].bincount(minlength=12)
    for seed in range(5):
        torch.manual_seed(seed)
        kept = edges[:, sample_neighbours(edges, most)]
        assert torch.equal(kept[1].bincount(minlength=12), degrees.clamp(max=most))
        places = [edges.T.tolist().index(pair) for pair in kept.T.tolist()]
        assert places == sorted(set(places))  # a subset, in order; the edges are all different


def test_all_sets_of_neighbours_are_equally_likely():
    edges = torch.tensor([[1, 2, 3, 4, 5, 0, 2], [0, 0, 0, 0, 0, 1, 1]])
    torch.manual_seed(0)
    trials = 1500
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(trials):
        kept = edges[:, sample_neighbours(edges, 2)]
        assert kept[0][kept[1] == 1].tolist() == [0, 2]
        pair = tuple(kept[0][kept[1] == 0].tolist())
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10
    expected = trials / 10
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < 27.9  # chi-square with 9 degrees of freedom: 1 in 1000


def test_neighbours_are_sampled_in_training_only(mutag):
    config = ModelConfig("GIN0+Sum", hidden=4, layers=1, neighbours=1, dropout=0.0)
    model = GraphClassifier(config, mutag.channels, 2)
    whole = GraphClassifier(ModelConfig("GIN0+Sum", hidden=4, layers=1, dropout=0.0), mutag.channels, 2)
    whole.load_state_dict(model.state_dict())
    batch = mutag[:10]
    with torch.no_grad():
        torch.manual_seed(0)
        first, second = model.train()(batch), model(batch)
        assert not torch.equal(first, second)  # drawn anew in every step
        whole.load_state_dict(model.state_dict())
        assert_close(model.eval()(batch), whole.eval()(batch), rtol=0, atol=0)


def test_recomputed_statistics_are_those_of_the_graphs_with_the_current_weights(mutag):
    graphs = mutag
    torch.manual_seed(0)
    model = GraphClassifier(ModelConfig("GIN0", hidden=4, layers=2, neighbours=1), graphs.channels, classes=2)
    model.train()
    for _ in range(3):  # running statistics, which are replaced
        model(graphs[:20])
    recompute_statistics(model, [graphs[:60], graphs[60:120]])
    assert not model.training
    first, second = (convolution.nn for convolution in model.convolutions)
    parts = [graphs[:60], graphs[60:120]]
    means, variances = [], []
    for part in parts:
        adjacency = torch.zeros(part.num_nodes, part.num_nodes)
        adjacency[part.edge_index[1], part.edge_index[0]] = 1  # all neighbours, although training samples them
        before = first[:4](part.x + adjacency @ part.x).detach()
        means.append(before.mean(0))
        variances.append(before.var(0))
    torch.testing.assert_close(first[4].running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(first[4].running_var, torch.stack(variances).mean(0))
    assert first[4].momentum == second[4].momentum == 0.1
    assert int(second[4].num_batches_tracked) == 2
