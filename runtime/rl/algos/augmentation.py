"""Augmentation of image observations.

Kostrikov et al. 2020, *Image Augmentation Is All You Need* (DrQ, arXiv:2004.13649), and Yarats et al. 2021,
*Mastering Visual Continuous Control* (DrQ-v2, arXiv:2107.09645), section 3.1: each image of a batch is shifted by a
random number of pixels, so that a critic cannot memorise single pixels. One draw for an observation and one for the
next, which is K = M = 1 in the first paper and the choice of the second.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runtime.rl.algos.actor import ActorShape


def random_shift(shape: ActorShape, rows: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Shift the images of observations (B, obs_dim) by up to ``pixels`` in both directions.

    Each image is shifted independently. New pixels repeat the border. The numbers next to the images stay.
    """
    if not shape.images or not pixels:
        return rows
    parts = [rows[:, : 4 * shape.obs_space.vector]]
    at = 4 * shape.obs_space.vector
    for image in shape.images:
        size = math.prod(image)
        pictures = rows[:, at : at + size].view(len(rows), *image)
        parts.append(shifted(pictures, _offsets(rows, pixels, generator)).flatten(1))
        at += size
    return torch.cat(parts, dim=1)


def shifted(pictures: Tensor, offsets: Tensor) -> Tensor:
    """Return images (B, height, width, channels) that begin at ``offsets`` (B, 2), pixels down and across."""
    count, height, width = pictures.shape[:3]
    device = pictures.device
    # A clamped index pads with the border, without a padded copy.
    down = (torch.arange(height, device=device) + offsets[:, :1]).clamp(0, height - 1)
    across = (torch.arange(width, device=device) + offsets[:, 1:]).clamp(0, width - 1)
    number = torch.arange(count, device=device)[:, None, None]
    return pictures[number, down[:, :, None], across[:, None, :]]


def _offsets(rows: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Return (B, 2) integers within +-``pixels``."""
    return torch.randint(-pixels, pixels + 1, (len(rows), 2), generator=generator, device=rows.device)
