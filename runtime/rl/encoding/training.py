"""Trains a variational autoencoder on frames.

Kingma & Welling 2014, *Auto-Encoding Variational Bayes* (arXiv:1312.6114), algorithm 1 with the estimator of
equation (10): one sample of the latents by the reparameterisation z = mean + std * noise, the divergence from the
standard normal prior in closed form (appendix B), and a Bernoulli decoder (appendix C.1). Layers and keys are the
same as in Learn-to-Race's VAE, so that the files are interchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from runtime.base.atomic_files import write_atomic
from runtime.base.errors import SetupError
from runtime.base.signals import Stop
from runtime.rl.encoders.vae import PADDING, SIDE, STRIDE
from runtime.rl.encoding.recording import Frames

BATCH: Final = 64
LEARNING_RATE: Final = 1e-3
_HELD_OUT: Final = 10
"""One frame in this many is held out from training."""


@dataclass(frozen=True, slots=True)
class Training:
    """Size of the network and length of its training."""

    epochs: int = 20
    latents: int = 32
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of each convolution."""
    kl: float = 1.0
    """Weight of the divergence; 1 is the evidence lower bound."""
    seed: int = 0
    threads: int = 1
    """Number of numerical threads."""


class Autoencoder(nn.Module):
    """Encoder and decoder; the decoder outputs logits, whose sigmoid is the pixel value."""

    def __init__(self, image: tuple[int, int, int], training: Training) -> None:
        """Raises ValueError if the strides do not divide the image's sides."""
        super().__init__()
        height, width, depth = image
        factor = STRIDE ** len(training.channels)
        if height % factor or width % factor:
            raise ValueError(
                f"pictures of {height} x {width} cannot be halved {len(training.channels)} times; resize them to "
                f"multiples of {factor}, or give fewer --channels"
            )
        sizes = (depth, *training.channels)
        code = (sizes[-1], height // factor, width // factor)
        features = code[0] * code[1] * code[2]
        self.encoder, self.decoder = nn.Sequential(), nn.Sequential(nn.Unflatten(1, code))
        for inputs, outputs in pairwise(sizes):
            self.encoder.extend([nn.Conv2d(inputs, outputs, SIDE, STRIDE, PADDING), nn.ReLU()])
        self.encoder.append(nn.Flatten())
        for number in range(len(sizes) - 1, 0, -1):
            self.decoder.append(nn.ConvTranspose2d(sizes[number], sizes[number - 1], SIDE, STRIDE, PADDING))
            if number > 1:
                self.decoder.append(nn.ReLU())
        self.fc1 = nn.Linear(features, training.latents)
        self.fc2 = nn.Linear(features, training.latents)
        self.fc3 = nn.Linear(training.latents, features)

    def losses(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction and divergence, nats per image, of pixels (B, channels, height, width) in [0, 1]."""
        hidden = self.encoder(pixels)
        mean, log_variance = self.fc1(hidden), self.fc2(hidden)
        latents = mean + (0.5 * log_variance).exp() * noise
        logits = self.decoder(self.fc3(latents))
        reconstruction = binary_cross_entropy_with_logits(logits, pixels, reduction="sum") / len(pixels)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / len(pixels)
        return reconstruction, divergence


def train(frames: Frames, training: Training, path: Path, stop: Stop) -> None:
    """Train, and write the newest weights to `path` after each epoch. Raises SetupError and OSError."""
    torch.set_num_threads(training.threads)
    generator = torch.Generator().manual_seed(training.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        try:
            model = Autoencoder((frames.shape[1], frames.shape[2], frames.shape[3]), training)
        except ValueError as error:
            raise SetupError(str(error)) from error
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    order = np.random.default_rng(training.seed).permutation(len(frames))
    held_out, trained = order[: len(frames) // _HELD_OUT], order[len(frames) // _HELD_OUT :]
    for epoch in range(training.epochs):
        shuffled = trained[torch.randperm(len(trained), generator=generator).numpy()]
        for rows in np.array_split(shuffled, -(-len(shuffled) // BATCH)):
            noise = torch.randn((len(rows), training.latents), generator=generator)
            reconstruction, divergence = model.losses(_pixels(frames[rows]), noise)
            optimiser.zero_grad()
            (reconstruction + training.kl * divergence).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if stop.is_set():
                break
        # An interrupted epoch also trained the model, and its weights are the newest.
        write_atomic(path, save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
        print(_progress(model, frames[held_out], training, epoch), flush=True)
        if stop.is_set():
            print(f"ended by {stop.reason}; {path} has the newest weights")
            return
    print(f"{path}: {training.latents} latents; train: {{encoder: {{name: vae, weights: {path.absolute()}}}}}")


@torch.no_grad()
def _progress(model: Autoencoder, frames: Frames, training: Training, epoch: int) -> str:
    """Return a line with the losses on held-out frames, at the means of their latents."""
    sums = np.zeros(2)
    for start in range(0, len(frames), BATCH):
        pixels = _pixels(frames[start : start + BATCH])
        losses = model.losses(pixels, torch.zeros((len(pixels), training.latents)))
        sums += len(pixels) * np.array([float(loss) for loss in losses])
    reconstruction, divergence = sums / len(frames)
    bound = reconstruction + training.kl * divergence
    return (
        f"epoch {epoch + 1}/{training.epochs}: loss {bound:.2f} nats a frame "
        f"(reconstruction {reconstruction:.2f}, divergence {divergence:.2f})"
    )


def _pixels(frames: Frames) -> Tensor:
    """(B, channels, height, width) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2))).float() / 255.0
