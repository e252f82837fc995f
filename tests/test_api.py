"""The public names and signatures, which may only grow.

After an intended change, write the new surface with ``python -m tests.test_api`` and add a line to the changelog.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import powerpool as pp
from powerpool import errors

SURFACE = Path(__file__).with_name("api_surface.json")
MODULES: dict[str, ModuleType] = {"powerpool": pp, "powerpool.nn": pp.nn}


def _signature(thing: Any) -> str:
    """Names, kinds and defaults; mypy checks annotations."""
    if isinstance(thing, ModuleType):
        return "module"
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(thing).parameters.values()]
    plain = inspect.Signature(parameters)
    return ("class" if inspect.isclass(thing) else "function") + str(plain)


def _surface() -> dict[str, dict[str, str]]:
    return {
        module_name: {name: _signature(getattr(module, name)) for name in sorted(module.__all__)}
        for module_name, module in MODULES.items()
    }


def test_surface_is_unchanged() -> None:
    frozen = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert _surface() == frozen, "the public API changed: if that is intended, run python -m tests.test_api"


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = MODULES[name]
    assert len(set(module.__all__)) == len(module.__all__)
    public = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "").startswith("powerpool")
    }
    assert public <= set(module.__all__)


# The calls of ARCHITECTURE.md.
CONTRACT = {
    "Gamma": "gamma=0.5",
    "MaxExp": "eta=50",
    "SignedMaxExp": "eta=50",
    "AsinhE": "gamma=10.0",
    "SigmE": "eta=50.0, trace_normalize=True",
    "HDP": "t=0.01",
    "FAHDP": "t=0.01, rounding='ceil'",
    "autocorrelation": "features, beta=0.0, mask=None",
    "spatial_coordinates": "height, width, pivots=5, sigma=0.5, alpha=1.0",
    "elementwise": "matrix, curve, eps=1e-06, check=None",
    "spectral": "matrix, curve, solver='auto', eps=1e-06, check=None",
    "first_order_pool": "features, curve=None",
    "second_order_pool": (
        "features, curve=None, mode='spectral', beta=0.0, coordinates=None, mask=None, solver='auto', eps=1e-06, "
        "check=None"
    ),
    "select_solver": "curve, channels, locations=None, dtype=torch.float32, device='cpu'",
    "to_vector": "matrix",
    "from_vector": "vector",
    "nn.SecondOrderPool2d": (
        "channels, curve=None, mode='spectral', beta=0.0, coordinates=0, reduce_to=None, solver='auto'"
    ),
    "nn.FirstOrderPool2d": "channels, curve=None",
    "nn.SecondOrderPool1d": (
        "channels, curve=None, mode='spectral', beta=0.0, reduce_to=None, solver='auto', prefix_tokens=0, cls='drop'"
    ),
    "nn.FirstOrderPool1d": "channels, curve=None",
    "integrations.replace_pooling": "model, pool, num_classes, where=None",
    "nn.ElementwisePowerNorm": "curve",
    "nn.SpectralPowerNorm": "curve, solver='auto'",
    "nn.RelationDescriptor": "curve, mode='elementwise', variant='outer+L'",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_contract_of_the_architecture(name: str) -> None:
    """These arguments come first, in order, with their defaults; others may follow."""
    thing: Any = pp
    for part in name.split("."):
        thing = getattr(thing, part)
    positional = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(thing).parameters.values()
        if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    shown = ", ".join(str(parameter) for parameter in positional)
    assert shown == CONTRACT[name] or shown.startswith(CONTRACT[name] + ", ")


def test_every_error_is_a_value_error_or_a_type_error() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert pp.solvers.DoubleBackwardError in classes
    for error in set(classes) - {errors.PowerPoolError, errors.LockedError}:
        assert issubclass(error, errors.PowerPoolError)
        assert issubclass(error, (ValueError, TypeError))


def test_every_public_thing_has_a_docstring_with_an_example() -> None:
    for module_name, module in MODULES.items():
        for name in module.__all__:
            thing = getattr(module, name)
            assert thing.__doc__, f"{module_name}.{name}"
            is_module = inspect.isclass(thing) and issubclass(thing, torch.nn.Module) and thing is not pp.Curve
            if inspect.isfunction(thing) or is_module:
                assert ">>>" in thing.__doc__, f"{module_name}.{name}"


def test_import_needs_torch_only() -> None:
    """In a fresh interpreter: no extra is imported, and no warning is given."""
    extras = ["numpy", "scipy", "sklearn", "rich", "jsonargparse", "lightning", "torch_geometric", "matplotlib", "yaml"]
    script = (
        "import sys\n"
        "import torch\n"
        "before = set(sys.modules)\n"
        "import powerpool\n"
        "added = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        f"print(sorted(added & set({extras!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(Path(pp.__file__).parents[1]), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    SURFACE.write_text(json.dumps(_surface(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
