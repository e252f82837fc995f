"""Which system of equations the classifiers of frozen features are computed from, so that a limit of memory is kept."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from powerpool.errors import ArgumentError
from powerpool.runs.engines import usable_cores
from powerpool.tasks.vision.config import HeadConfig, VisionConfig
from powerpool.tasks.vision.systems import Gram, Minibatches, NormalEquations, Samples, Subspace, System
from powerpool.tasks.vision.vectors import POOL_BATCH, choose_dtype

Solver = Literal["gram", "normal", "subspace", "minibatches"]
BLOCK = 1024
"""Images whose vectors are multiplied at once."""
KRYLOV_STEPS, KRYLOV_COLUMNS = 6, 256
"""The largest number of steps, and the columns of a step if there are fewer classes."""
COPIES = 7
"""Blocks of vectors in memory at once: those that are multiplied, the next one, and copies in float64."""
WORKING = 8
"""Matrices of the size of a step that its computation needs, some of them in float64."""
MOST_PASSES = 50
"""The Gram matrix is computed from blocks if every image is pooled at most so often, as by epochs of softmax."""
POOLING = 8 * POOL_BATCH
"""Vectors whose memory the pooling of a batch needs: there are several C' x C' matrices of each image."""
CONTAINER = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container in bytes, or "max"."""


@dataclass(frozen=True)
class Shape:
    """The sizes that memory depends on."""

    images: int
    """Of both splits."""
    width: int
    """D, of a vector."""
    classes: int

    @property
    def vector(self) -> int:
        """Bytes of a vector."""
        return 4 * self.width

    @property
    def weights(self) -> int:
        """Bytes of the weights of a classifier."""
        return 4 * self.width * self.classes


@dataclass(frozen=True)
class Plan:
    """How a classifier is computed."""

    solver: Solver
    shape: Shape
    keep: bool
    """Whether all vectors are in memory."""
    block: int
    """Images whose vectors are read at once."""
    subspace: Subspace | None = None

    def build(self, samples: Samples) -> System:
        """Return the system of the vectors."""
        if self.solver == "gram":
            return Gram(samples)
        return Minibatches(samples) if self.solver == "minibatches" else NormalEquations(samples, self.subspace)

    @property
    def _dimensions(self) -> str:
        space = self.subspace
        if space is None:
            return "all"
        return f"{space.steps} x {space.groups * self.shape.classes:,}"

    @property
    def method(self) -> str:
        """What the numbers depend on, beside round-off: the solver and its size."""
        shape = self.shape
        return {
            "gram": f"dot products of {shape.images:,} images",
            "normal": f"normal equations of {shape.width:,} numbers",
            "subspace": f"normal equations in {self._dimensions} of {shape.width:,} dimensions",
            "minibatches": f"minibatches of vectors of {shape.width:,} numbers",
        }[self.solver]

    @property
    def text(self) -> str:
        """One line for people and records."""
        vectors = "vectors in memory" if self.keep else f"vectors pooled when needed, {self.block:,} images at a time"
        return f"{self.method}, {vectors}"


def memory_limit(head: HeadConfig) -> float:
    """Return the limit in bytes: the given one, or half of the memory of the machine or container."""
    if head.memory is not None:
        return 1e9 * head.memory
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = CONTAINER.read_text().strip() if CONTAINER.exists() else "max"
    return 0.5 * min(total, total if allowed == "max" else int(allowed))


def with_memory_share(config: VisionConfig) -> VisionConfig:
    """Return the settings for one of several processes on frozen features: together they keep the default limit.

    It is divided by the number of cores, so that the solver does not depend on ``--jobs``, nor on which machine of a
    cluster computes a unit.
    """
    if config.head.memory is not None or config.mode != "frozen":
        return config
    share = memory_limit(config.head) / 1e9 / usable_cores()
    return replace(config, head=replace(config.head, memory=share))


def make_plan(head: HeadConfig, shape: Shape) -> Plan:
    """Return the exact solution if its matrices fit; otherwise one that needs less memory; or refuse."""
    limit = memory_limit(head)
    ways = _list_ways(head, shape, limit)
    for way in ways:
        found = _fit_vectors(shape, limit, way)
        if found is not None:
            return found
    least = 1.01e-9 * min(way.needed + _least(shape, way.block) for way in ways)  # not rounded down below
    raise ArgumentError(
        f"The classifier of {shape.classes} classes and vectors of {shape.width:,} numbers needs {least:.3g} GB, "
        f"and head.memory allows {limit / 1e9:.3g} GB. Raise head.memory, use a backbone with fewer channels, or "
        "use mode end-to-end with pool.reduce_to."
    )


@dataclass(frozen=True)
class _Way:
    """A solver and the bytes that it needs beside vectors."""

    solver: Solver
    needed: int
    block: int = POOL_BATCH
    """The smallest block of images."""
    subspace: Subspace | None = None


def _list_ways(head: HeadConfig, shape: Shape, limit: float) -> list[_Way]:
    """Return the ways to compute a classifier, the preferred one first."""
    ways = []
    if shape.images < shape.width:
        block = max(POOL_BATCH, math.ceil(shape.images / (2 * MOST_PASSES)))
        ways.append(_Way("gram", _gram_bytes(head, shape), block))
    if head.kind == "softmax":
        needed = (4 * len(head.penalties) + 2) * shape.weights  # with momentum, and a checkpoint that is read
        return [*ways, _Way("minibatches", needed)]
    if shape.width <= shape.images:
        ways.append(_Way("normal", _normal_bytes(shape)))
    subspace = _largest_subspace(shape, limit)
    return [*ways, _Way("subspace", _subspace_bytes(shape, subspace), subspace=subspace)]


def _gram_bytes(head: HeadConfig, shape: Shape) -> int:
    item = choose_dtype(shape.images, shape.width).itemsize
    centred = 8 if head.kind == "ridge" else 8 + 4  # softmax regression copies it to float32
    return (item + centred) * shape.images**2 + 3 * shape.weights


def _normal_bytes(shape: Shape) -> int:
    return 4 * 8 * shape.width**2 + 3 * shape.weights


def _subspace_bytes(shape: Shape, space: Subspace) -> int:
    dimensions = space.steps * space.groups * shape.classes
    return (space.steps + WORKING) * space.groups * shape.weights + 4 * 8 * dimensions**2


def _largest_subspace(shape: Shape, limit: float) -> Subspace:
    """Return the widest steps of which at least three fit, and as many as fit; a quarter is left for vectors."""
    for groups in range(math.ceil(KRYLOV_COLUMNS / shape.classes), 0, -1):
        for steps in range(KRYLOV_STEPS, 2 if groups > 1 else 0, -1):
            if _subspace_bytes(shape, Subspace(steps, groups)) + _least(shape) <= 0.75 * limit:
                return Subspace(steps, groups)
    return Subspace(1)


def _least(shape: Shape, block: int = POOL_BATCH) -> int:
    """Return the bytes for pooling, and for blocks of vectors."""
    return (POOLING + COPIES * block) * shape.vector


def _fit_vectors(shape: Shape, limit: float, way: _Way) -> Plan | None:
    """Return the plan with vectors in memory, or else in the largest blocks that fit; None if none fits."""
    rest = limit - way.needed - POOLING * shape.vector
    if rest >= (shape.images + COPIES * POOL_BATCH) * shape.vector:
        return Plan(way.solver, shape, True, BLOCK, way.subspace)
    block = min(BLOCK, int(rest / (COPIES * shape.vector)))
    return Plan(way.solver, shape, False, block, way.subspace) if block >= way.block else None
