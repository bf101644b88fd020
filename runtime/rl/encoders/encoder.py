"""Frozen encoders: the setting, the protocol of one's own, and the environment that shows latents for pictures.

The encoder runs where the pictures are, beside the environment. All behind it, the wire, the replay, networks,
remote inference and exported policies, handles a vector of latents and the other numbers: a picture of
144 x 144 x 3 takes 62 kB, and 32 latents 128 bytes. So every method works with it, and none needs to know.
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
    """Encoder of an observation's pictures; one of one's own has these two and a constructor.

    The constructor gets ``images``, the size (height, width, channels) of each picture, and the setting's options
    by name. It raises ValueError, with a sentence, for pictures that it cannot take.
    """

    size: int
    """Numbers that it makes of the pictures of one observation."""

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return latents (B, size) of the pictures of B observations, (B, height, width, channels) each."""


@dataclass(frozen=True, slots=True)
class EncoderSetting(EncoderForm):
    """Setting `encoder`, checked for its form, which loads its encoder."""

    def load(self, images: Sequence[Image]) -> Encoder:
        """Return the encoder for pictures of these sizes. ValueError with a sentence if it cannot be."""
        if not images:
            raise ValueError(f"encoder: {self.name} is for pictures, and this environment shows none; leave it out")
        kind = load_class("runtime.rl.encoders.vae:VAE" if self.name == VAE else self.name)
        try:
            encoder: Encoder = kind(tuple(images), **self.options)
        except ValueError as error:
            raise ValueError(f"encoder: {self.name}: {error}") from error
        # Its own code decides what it takes; a sentence says which one it was.
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
    """Return the encoder whose weights a run learns further; None where there is none. ValueError as `load`."""
    encoding = EncoderSetting.of(setting)
    if encoding is None or encoding.is_frozen:
        return None
    encoder: Any = encoding.load(images)
    layers: FirstLayers = encoder
    return layers


class EncodedVectorEnv:
    """Environment that shows latents in the place of its pictures, in front of the other numbers."""

    def __init__(self, env: VectorEnv, encoder: Encoder, name: str) -> None:
        self._env, self._encoder, self._name = env, encoder, name
        self._pictures = env.obs_space
        self.num_envs, self.action_space, self.step_seconds = env.num_envs, env.action_space, env.step_seconds
        self.obs_space = ObsSpace(encoder.size + env.obs_space.vector)
        # Protocols that are checked at run time look for attributes of the object itself (from Python 3.12 on).
        for offered in ("close", "report", "heed", "measure", "render"):
            if hasattr(env, offered):
                setattr(self, offered, getattr(env, offered))

    def __getattr__(self, attribute: str) -> Any:
        """Offer what the environment offers beyond the interface: processes, measures, a track."""
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(self._env, attribute)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every copy anew."""
        return self._encoded(self._env.reset(seed))

    def step(self, action: NDArray[Any]) -> StepResult:
        """Apply actions (B, action_space.size)."""
        result = self._env.step(action)
        obs = self._encoded(result.obs)
        # Of copies that go on the final observation is the next one: most steps encode each picture once.
        ended = np.flatnonzero(result.terminated | result.truncated)
        final_obs = obs
        if len(ended):
            final_obs = obs.copy()
            final_obs[ended] = self._encoded(result.final_obs[ended])
        return replace(result, obs=obs, final_obs=final_obs)

    def _encoded(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows (B, obs_space.width). ValueError if the encoder gives another size than it has said."""
        vector, pictures = self._pictures.split(rows)
        latents = np.asarray(self._encoder.encode(pictures), dtype=np.float32)
        if latents.shape != (len(rows), self._encoder.size):
            expected = (len(rows), self._encoder.size)
            raise ValueError(f"encoder: {self._name} gave an array of {latents.shape}, not {expected}")
        return np.concatenate([latents, vector], axis=1)
