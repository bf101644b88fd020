"""Frozen encoders: the setting, the protocol for user-defined ones, and an environment that observes latents.

The encoder runs in the same process as the environment. The wire, the replay, networks, remote inference and
exported policies then handle a vector of latents and the other numbers: an image of 144 x 144 x 3 takes 62 kB, and
32 latents 128 bytes. Every method works with an encoder without knowing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.training_rules import VAE, EncoderForm
from runtime.rl.algos.actor import FirstLayers
from runtime.rl.class_names import load_class
from runtime.rl.envs.base import StepResult, VectorEnv
from runtime.rl.spaces import Image, ObsSpace


class Encoder(Protocol):
    """Encoder of an observation's images; a user-defined one has these two members and a constructor.

    The constructor receives ``images``, the size (height, width, channels) of each image, and the setting's options
    by name. It raises ValueError, with a sentence, for unsupported images.
    """

    size: int
    """Number of latents for the images of one observation."""

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return latents (B, size) of the images of B observations, (B, height, width, channels) each."""


@dataclass(frozen=True, slots=True)
class EncoderSetting(EncoderForm):
    """Setting `encoder`, checked for its form, which loads its encoder."""

    def load(self, images: Sequence[Image]) -> Encoder:
        """Return the encoder for images of these sizes. Raises ValueError with a sentence if that fails."""
        if not images:
            raise ValueError(f"encoder: {self.name} is for pictures, and this environment shows none; leave it out")
        kind = load_class("runtime.rl.encoders.vae:VAE" if self.name == VAE else self.name)
        try:
            encoder: Encoder = kind(tuple(images), **self.options)
        except ValueError as error:
            raise ValueError(f"encoder: {self.name}: {error}") from error
        # User code checks its own options; the error sentence names the encoder.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"encoder: {self.name} cannot be made with {dict(self.options)} ({reason})") from error
        size = getattr(encoder, "size", None)
        if not isinstance(size, int) or size < 1 or not callable(getattr(encoder, "encode", None)):
            raise ValueError(
                f"encoder: {self.name} has no size (a whole number) or no encode; docs/own-methods.md shows one"
            )
        return encoder


def tuned_encoder(setting: str | Mapping[str, Any] | None, images: Sequence[Image]) -> FirstLayers | None:
    """Return the encoder that the run trains further; None without one. Raises ValueError like `load`."""
    encoding = EncoderSetting.of(setting)
    if encoding is None or encoding.is_frozen:
        return None
    encoder: Any = encoding.load(images)
    layers: FirstLayers = encoder
    return layers


class EncodedVectorEnv:
    """Environment whose observations contain latents instead of images, before the other numbers.

    Its further interfaces are those of ``wrapped``, see ``runtime.rl.envs.base.bare``.
    """

    def __init__(self, env: VectorEnv, encoder: Encoder, name: str) -> None:
        self.wrapped, self._encoder, self._name = env, encoder, name
        self._pictures = env.obs_space
        self.num_envs, self.action_space, self.step_seconds = env.num_envs, env.action_space, env.step_seconds
        self.obs_space = ObsSpace(encoder.size + env.obs_space.vector)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start a new episode in every copy."""
        return self._encoded(self.wrapped.reset(seed))

    def step(self, action: NDArray[Any]) -> StepResult:
        """Apply actions (B, action_space.size)."""
        result = self.wrapped.step(action)
        obs = self._encoded(result.obs)
        # For unfinished copies the final observation is the next one: most steps encode each image once.
        ended = np.flatnonzero(result.terminated | result.truncated)
        final_obs = obs
        if len(ended):
            final_obs = obs.copy()
            final_obs[ended] = self._encoded(result.final_obs[ended])
        return replace(result, obs=obs, final_obs=final_obs)

    def _encoded(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows (B, obs_space.width). Raises ValueError if the encoder returns another size than it
        declared.
        """
        vector, pictures = self._pictures.split(rows)
        latents = np.asarray(self._encoder.encode(pictures), dtype=np.float32)
        if latents.shape != (len(rows), self._encoder.size):
            expected = (len(rows), self._encoder.size)
            raise ValueError(f"encoder: {self._name} gave an array of {latents.shape}, not {expected}")
        return np.concatenate([latents, vector], axis=1)
