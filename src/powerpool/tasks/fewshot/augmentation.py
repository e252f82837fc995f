"""Random mirror images and shifts of training images, the same for the same seed and episode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from powerpool.data.splits import draw_key


@dataclass(frozen=True)
class Augmentation:
    """Mirror every image with probability one half, and shift it by up to so many pixels; the border is reflected.

    A shift is a random crop of the image with a reflected margin, so that the size stays the same.
    """

    flips: bool = False
    shift: int = 0
    seed: int = 0

    def __bool__(self) -> bool:
        return self.flips or self.shift > 0

    def apply(self, images: Tensor, number: int) -> Tensor:  # shape: (B, C, H, W) -> (B, C, H, W)
        """Return the changed images of a training episode, given its number."""
        seed = int.from_bytes(draw_key(self.seed, f"augmentation {number}")[:7], "big")
        generator = torch.Generator().manual_seed(seed)
        if self.flips:
            mirrored = torch.rand(len(images), generator=generator) < 0.5
            images = torch.where(mirrored[:, None, None, None].to(images.device), images.flip(-1), images)
        if self.shift:
            margin = self.shift
            offsets = torch.randint(2 * margin + 1, (2, len(images), 1), generator=generator).to(images.device)
            padded = nn.functional.pad(images, [margin] * 4, mode="reflect")
            height, width = images.shape[-2:]
            rows = offsets[0] + torch.arange(height, device=images.device)  # (B, H)
            columns = offsets[1] + torch.arange(width, device=images.device)
            place = torch.arange(len(images), device=images.device)[:, None, None]
            images = padded.movedim(1, -1)[place, rows[:, :, None], columns[:, None]].movedim(-1, 1)
        return images
