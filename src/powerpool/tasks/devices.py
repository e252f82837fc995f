"""Devices that settings name."""

from __future__ import annotations

import torch

from powerpool.errors import ArgumentError


def require_device_name(device: str) -> None:
    """Refuse what is no device of torch."""
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(
            f"training.device must be a device of torch, such as cpu or cuda:0 (got {device!r})."
        ) from error


def require_device(device: str) -> str:
    """Refuse a device that torch knows, but this machine has not."""
    try:
        torch.empty(1, device=device).item()
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ArgumentError(
            f"The device {device!r} cannot be used on this machine: {reason}. Take cpu, or a device that is there."
        ) from error
    return device
