"""What an installed powerpool must do beside torch alone: run as a script by the interpreter that has it."""

import importlib.util
import sys
from importlib import metadata, resources

import torch
from torch import nn

import powerpool as pp

OTHERS = ("grakel", "joblib", "jsonargparse", "lightning", "matplotlib", "plotly", "rich", "scipy", "sklearn", "yaml")


def check_environment() -> None:
    present = [name for name in OTHERS if importlib.util.find_spec(name) is not None]
    assert not present, f"core dependencies only, but {present} can be imported"
    assert "site-packages" in str(pp.__file__), f"the checkout is imported: {pp.__file__}"
    assert metadata.version("powerpool") == pp.__version__
    package = resources.files("powerpool")
    for name in (
        "py.typed",
        "recipes/paper.yaml",
        "analysis/explorer/assets/page.html",
        "report/templates/README.md.j2",
    ):
        assert package.joinpath(name).is_file(), f"{name} is not in the package"


def check_spectral() -> None:
    """Values against the formula on eigenvalues, gradients against differences."""
    torch.manual_seed(0)
    features = torch.rand(2, 5, 9, dtype=torch.float64)
    matrix = pp.autocorrelation(features)
    values, vectors = torch.linalg.eigh(matrix / matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None])
    bent = vectors @ torch.diag_embed(1 - (1 - values) ** 20) @ vectors.mT
    for solver in ("auto", "eigen", "squaring"):
        torch.testing.assert_close(pp.spectral(matrix, pp.MaxExp(eta=20), solver=solver), bent, rtol=1e-5, atol=1e-5)
    for curve in (pp.MaxExp(eta=20), pp.Gamma(gamma=0.5), pp.HDP(t=0.01)):
        inputs = features.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, curve=curve: pp.second_order_pool(x, curve), inputs)


def check_training() -> None:
    """One step of a network with a pool in the place of average pooling lowers its loss."""
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=50))
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pool, nn.Linear(pool.out_features, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    images, labels = torch.rand(6, 3, 12, 12), torch.arange(6) % 4
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(net(images), labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[1] < losses[0]


def check_segments() -> None:
    nodes, graph = torch.rand(7, 4), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    matrices = pp.segment_autocorrelation(nodes, graph)
    torch.testing.assert_close(matrices[1], nodes[3:5].mT @ nodes[3:5] / 2)


if __name__ == "__main__":
    check_environment()
    check_spectral()
    check_training()
    check_segments()
    sys.stdout.write(f"powerpool {pp.__version__} works beside torch {torch.__version__} alone\n")
