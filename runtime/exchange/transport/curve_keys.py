"""Keys of the exchange off this machine: who the learner is, and who may speak to it (stdlib only).

ZeroMQ's CURVE wants a pair of Curve25519 keys on each side. A launcher that wants learner and workers to hold
different secrets makes the files of `make_files` and mounts them as `L2R_KEYS`; without them both sides derive the
same pairs from the run's token, so that a token alone is enough for an encrypted and authenticated exchange. What
the files add: a worker that was broken into cannot pose as the learner.

Curve25519 stands here as RFC 7748 writes it, so that a launcher needs no library to make keys. It runs once in a
process, on secrets of its own, where its timing tells nobody anything.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SERVER_SECRET: Final = "server.key"  # noqa: S105  (a file's name)
SERVER_PUBLIC: Final = "server.pub"
CLIENT_SECRET: Final = "client.key"  # noqa: S105  (a file's name)
CLIENT_PUBLIC: Final = "client.pub"

_PRIME: Final = 2**255 - 19
_LARGEST_FILE: Final = 64 * 1024


class KeysError(ValueError):
    """The keys cannot be used; the sentence names the file."""


@dataclass(frozen=True, slots=True)
class LearnerKeys:
    """The learner's own pair and the public keys of those that may connect, all in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """A peer's own pair and the public key of the learner that it trusts, all in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes


def from_token(token: str) -> tuple[LearnerKeys, PeerKeys]:
    """Return the keys that everybody who has the token can derive. The work of scrypt makes guessing dear."""
    root = hashlib.scrypt(token.encode(), salt=b"l2r exchange 2", n=2**14, r=8, p=1, dklen=64)
    server, client = root[:32], root[32:]
    server_public, client_public = _z85(public_key(server)), _z85(public_key(client))
    return (
        LearnerKeys(server_public, _z85(server), frozenset({client_public})),
        PeerKeys(client_public, _z85(client), server_public),
    )


def make_files() -> dict[str, bytes]:
    """Return new keys of a run as the files of `L2R_KEYS`: names and contents."""
    server, client = secrets.token_bytes(32), secrets.token_bytes(32)
    return {
        SERVER_SECRET: _z85(server),
        SERVER_PUBLIC: _z85(public_key(server)),
        CLIENT_SECRET: _z85(client),
        CLIENT_PUBLIC: _z85(public_key(client)),
    }


def read_learner(folder: Path) -> LearnerKeys:
    """Return a learner's keys: `server.key`, and each line of `client.pub` is a peer's key. Raises KeysError."""
    secret = _one(folder / SERVER_SECRET)
    allowed = frozenset(_lines(folder / CLIENT_PUBLIC))
    return LearnerKeys(_z85(public_key(_raw(secret))), secret, allowed)


def read_peer(folder: Path) -> PeerKeys:
    """Return a peer's keys: `client.key` and `server.pub`. Raises KeysError."""
    secret = _one(folder / CLIENT_SECRET)
    return PeerKeys(_z85(public_key(_raw(secret))), secret, _one(folder / SERVER_PUBLIC))


def public_key(secret: bytes) -> bytes:
    """Return the public key of 32 secret bytes (RFC 7748, section 5: X25519 with the base point 9)."""
    scalar = int.from_bytes(secret, "little") & ~7 & (2**255 - 1) | 2**254
    x1, x2, z2, x3, z3 = 9, 1, 0, 9, 1
    swap = 0
    for bit in range(254, -1, -1):
        now = scalar >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b = x2 + z2, x2 - z2
        da, cb = (x3 - z3) * a, (x3 + z3) * b
        aa, bb = a * a % _PRIME, b * b % _PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _PRIME, x1 * (da - cb) ** 2 % _PRIME
        x2, z2 = aa * bb % _PRIME, e * (aa + 121665 * e) % _PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85: Final = bytes.maketrans(_B85.encode(), _Z85.encode())
_FROM_Z85: Final = bytes.maketrans(_Z85.encode(), _B85.encode())


def _z85(raw: bytes) -> bytes:
    """Z85 is Python's base85 with the letters in another order."""
    return base64.b85encode(raw).translate(_TO_Z85)


def _raw(key: bytes) -> bytes:
    return base64.b85decode(key.translate(_FROM_Z85))


def _one(path: Path) -> bytes:
    lines = _lines(path)
    if len(lines) != 1:
        raise KeysError(f"the key file {path} must hold one key of 40 characters (Z85)")
    return lines[0]


def _lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST_FILE).split()
    except OSError as error:
        raise KeysError(f"the key file {path} cannot be read: {error}") from error
    letters = frozenset(_Z85.encode())
    if not lines or not all(len(each) == 40 and letters.issuperset(each) for each in lines):
        raise KeysError(f"the key file {path} must hold keys of 40 characters (Z85), one in a line")
    return lines
