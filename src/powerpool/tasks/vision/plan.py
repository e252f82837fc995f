"""Which system of equations the classifiers of frozen features are computed from, so that a limit of memory is kept."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from powerpool.errors import ArgumentError
from powerpool.tasks.vision.config import HeadConfig
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
        return "all" if space is None else f"{space.steps * space.groups * self.shape.classes:,}"

    @property
    def text(self) -> str:
        """One line for people and records."""
        shape = self.shape
        how = {
            "gram": f"dot products of {shape.images:,} images",
            "normal": f"normal equations of {shape.width:,} numbers",
            "subspace": f"normal equations in {self._dimensions} of {shape.width:,} dimensions",
            "minibatches": f"minibatches of vectors of {shape.width:,} numbers",
        }[self.solver]
        vectors = "vectors in memory" if self.keep else f"vectors pooled when needed, {self.block:,} images at a time"
        return f"{how}, {vectors}"


def memory_limit(head: HeadConfig) -> float:
    """Return the limit in bytes: the given one, or half of the memory of the machine."""
    if head.memory is not None:
        return 1e9 * head.memory
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def make_plan(head: HeadConfig, shape: Shape) -> Plan:
    """Return the exact solution if its matrices fit; otherwise one that needs less memory; or refuse."""
    limit = memory_limit(head)
    gram = _fit_vectors(shape, limit, "gram", _gram_bytes(shape)) if shape.images < shape.width else None
    if gram is not None and (gram.keep or shape.images <= 2 * MOST_PASSES * gram.block):
        return gram
    if head.kind == "softmax":
        needed = (4 * len(head.penalties) + 2) * shape.weights  # with momentum, and a checkpoint that is read
        found = _fit_vectors(shape, limit, "minibatches", needed)
    elif shape.width <= shape.images and (plan := _fit_vectors(shape, limit, "normal", _normal_bytes(shape))):
        found = plan
    else:
        subspace = _largest_subspace(shape, limit)
        needed = _subspace_bytes(shape, subspace)
        found = _fit_vectors(shape, limit, "subspace", needed, subspace)
    if found is None:
        least = (needed + _least(shape)) / 1e9
        raise ArgumentError(
            f"The classifier of {shape.classes} classes and vectors of {shape.width:,} numbers needs {least:.2g} GB, "
            f"and head.memory allows {limit / 1e9:.2g} GB. Raise head.memory, use a backbone with fewer channels, or "
            "use mode end-to-end with pool.reduce_to."
        )
    return found


def _gram_bytes(shape: Shape) -> int:
    item = choose_dtype(shape.images, shape.width).itemsize
    return (item + 8) * shape.images**2 + 3 * shape.weights


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


def _least(shape: Shape) -> int:
    """Return the bytes for pooling, and for the smallest blocks."""
    return (POOLING + COPIES * POOL_BATCH) * shape.vector


def _fit_vectors(
    shape: Shape, limit: float, solver: Solver, needed: float, space: Subspace | None = None
) -> Plan | None:
    """Return the plan with vectors in memory, or else in the largest blocks that fit; None if none fits."""
    rest = limit - needed - POOLING * shape.vector
    if rest >= (shape.images + COPIES * POOL_BATCH) * shape.vector:
        return Plan(solver, shape, True, BLOCK, space)
    block = min(BLOCK, int(rest / (COPIES * shape.vector)))
    return Plan(solver, shape, False, block, space) if block >= POOL_BATCH else None
