"""Random number generators whose saved state can move to another type of device.

Each type of device has its own generator: the Mersenne Twister on a CPU (5,056 bytes), Philox on a GPU (seed and
offset, 16 bytes). The state of one cannot be used by the other. On another type the generator is therefore seeded
with a hash of the saved state, so that the same checkpoint always continues in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

_MARK: Final = ".device"
"""Suffix of the name under which the device type is saved, as bytes."""
_SIZES: Final = {5056: "cpu", 16: "cuda"}
"""Device types by the size of their state in bytes, for checkpoints of earlier versions without that entry."""


def saved_generators(generators: Mapping[str, torch.Generator]) -> dict[str, Tensor]:
    """Return the states by name, each with an entry for the type of its device."""
    states = {name: generator.get_state() for name, generator in generators.items()}
    marks = {name + _MARK: _text(generator.device.type) for name, generator in generators.items()}
    return states | marks


def check_generator(name: str, generator: torch.Generator, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `load_generator` accepts the state with this name."""
    saved = state[name]
    sentence = f"the saved {name} is not the state of a random number generator"
    if saved.dtype != torch.uint8 or saved.dim() != 1:
        raise ValueError(sentence)
    if _device_type(name, state) == generator.device.type:
        try:
            torch.Generator(generator.device).set_state(saved)
        except RuntimeError as error:
            raise ValueError(f"{sentence}: {error}") from error


def load_generator(name: str, generator: torch.Generator, state: Mapping[str, Tensor]) -> str | None:
    """Set a generator to a saved state; return a sentence if it continues with different numbers."""
    saved, origin, target = state[name], _device_type(name, state), generator.device.type
    if origin == target:
        # In place: a CUDA graph that registered the generator reads the new seed and offset at its next replay.
        generator.set_state(saved)
        return None
    digest = hashlib.blake2b(saved.numpy().tobytes(), digest_size=8).digest()
    generator.manual_seed(int.from_bytes(digest, "little") % 2**63)
    return f"{name} was saved on {origin or 'another device'} and draws other numbers on {target}"


def _device_type(name: str, state: Mapping[str, Tensor]) -> str | None:
    """Return the type of device that a state was saved on; None if it is unknown."""
    mark = state.get(name + _MARK)
    return _SIZES.get(state[name].numel()) if mark is None else mark.numpy().tobytes().decode("ascii", "replace")


def _text(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)
