"""CURVE keys for the exchange between machines, from files or from the run's token (standard library only).

ZeroMQ's CURVE needs a pair of Curve25519 keys on each side. A launcher that gives learner and workers different
secrets writes the files of `make_files` and mounts them as `L2R_KEYS`. Without them both sides derive the same
pairs from the run's token, so the token is enough for encryption and authentication. The files add one property: a
compromised worker cannot impersonate the learner.

Curve25519 is implemented here after RFC 7748, so that a launcher needs no library to make keys. It runs once per
process, on its own secrets, so its timing reveals nothing to an attacker.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtime.base.contract import ENV_KEYS, ENV_TOKEN_FILE
from runtime.base.errors import SetupError
from runtime.base.launch_context import LaunchContext

SERVER_SECRET: Final = "server.key"  # noqa: S105  (a file's name)
SERVER_PUBLIC: Final = "server.pub"
CLIENT_SECRET: Final = "client.key"  # noqa: S105  (a file's name)
CLIENT_PUBLIC: Final = "client.pub"

_PRIME: Final = 2**255 - 19
_LARGEST_FILE: Final = 64 * 1024


class KeysError(ValueError):
    """The keys cannot be used; the text names the file."""


@dataclass(frozen=True, slots=True)
class LearnerKeys:
    """Learner's key pair and the public keys that may connect, all in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class PeerKeys:
    """Peer's key pair and the public key of the learner that it trusts, all in Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes


def from_token(token: str) -> tuple[LearnerKeys, PeerKeys]:
    """Return the keys derived from the token; scrypt makes guessing the token expensive."""
    # Salt and parameters are part of the protocol (docs/exchange.md): both ends must derive the same keys.
    root = hashlib.scrypt(token.encode(), salt=b"l2r exchange 2", n=2**14, r=8, p=1, dklen=64)
    server, client = root[:32], root[32:]
    server_public, client_public = _z85(public_key(server)), _z85(public_key(client))
    learner = LearnerKeys(server_public, _z85(server), frozenset({client_public}))
    return learner, PeerKeys(client_public, _z85(client), server_public)


def make_files() -> dict[str, bytes]:
    """Return new keys of a run as names and contents of the files in `L2R_KEYS`."""
    server, client = secrets.token_bytes(32), secrets.token_bytes(32)
    return {
        SERVER_SECRET: _z85(server),
        SERVER_PUBLIC: _z85(public_key(server)),
        CLIENT_SECRET: _z85(client),
        CLIENT_PUBLIC: _z85(public_key(client)),
    }


def read_learner(folder: Path) -> LearnerKeys:
    """Return a learner's keys: `server.key`, and each line of `client.pub` is a peer's key. Raises KeysError."""
    secret = _only_key(folder / SERVER_SECRET)
    allowed = frozenset(_lines(folder / CLIENT_PUBLIC))
    return LearnerKeys(_z85(public_key(_raw(secret))), secret, allowed)


def read_peer(folder: Path) -> PeerKeys:
    """Return a peer's keys: `client.key` and `server.pub`. Raises KeysError."""
    secret = _only_key(folder / CLIENT_SECRET)
    return PeerKeys(_z85(public_key(_raw(secret))), secret, _only_key(folder / SERVER_PUBLIC))


def learner_keys(context: LaunchContext) -> LearnerKeys | None:
    """Return the keys that authenticate this learner; None without encryption. Raises SetupError."""
    if context.endpoint.folder is None and context.keys_folder is not None:
        try:
            return read_learner(context.keys_folder)
        except KeysError as error:
            raise SetupError(f"{ENV_KEYS}: {error}") from error
    return None if context.endpoint.is_private() else from_token(context.token)[0]


def peer_keys(context: LaunchContext) -> PeerKeys | None:
    """Return the keys that authenticate this process to the learner; None without encryption.

    Raises SetupError if the learner is on another machine and there is neither a key folder nor a token.
    """
    if context.endpoint.folder is None and context.keys_folder is not None:
        try:
            return read_peer(context.keys_folder)
        except KeysError as error:
            raise SetupError(f"{ENV_KEYS}: {error}") from error
    if context.endpoint.is_private():
        return None
    if not context.token:
        raise SetupError(
            f"the learner at {context.endpoint.data} is on another machine and there is no token; "
            f"set {ENV_TOKEN_FILE} to the run's token file"
        )
    return from_token(context.token)[1]


def public_key(secret: bytes) -> bytes:
    """Return the public key of 32 secret bytes (RFC 7748, section 5: X25519 with the base point 9)."""
    # "Clamping" of RFC 7748, then the Montgomery ladder with projective coordinates (x2:z2) and (x3:z3).
    scalar = int.from_bytes(secret, "little") & ~7 & (2**255 - 1) | 2**254
    x1, x2, z2, x3, z3 = 9, 1, 0, 9, 1
    swap = 0
    for bit in range(254, -1, -1):
        is_set = scalar >> bit & 1
        if swap ^ is_set:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = is_set
        a, b = x2 + z2, x2 - z2
        da, cb = (x3 - z3) * a, (x3 + z3) * b
        aa, bb = a * a % _PRIME, b * b % _PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _PRIME, x1 * (da - cb) ** 2 % _PRIME
        # 121665 is the constant a24 of RFC 7748: (486662 - 2) / 4 for this curve.
        x2, z2 = aa * bb % _PRIME, e * (aa + 121665 * e) % _PRIME
    if swap:
        x2, z2 = x3, z3
    # x2 / z2, with the inverse by Fermat's little theorem.
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85: Final = bytes.maketrans(_B85.encode(), _Z85.encode())
_FROM_Z85: Final = bytes.maketrans(_Z85.encode(), _B85.encode())


def _z85(raw: bytes) -> bytes:
    """Return `raw` in Z85 (ZeroMQ RFC 32), which is Python's base85 with another alphabet."""
    return base64.b85encode(raw).translate(_TO_Z85)


def _raw(key: bytes) -> bytes:
    return base64.b85decode(key.translate(_FROM_Z85))


def _only_key(path: Path) -> bytes:
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
    if not lines or not all(len(line) == 40 and letters.issuperset(line) for line in lines):
        raise KeysError(f"the key file {path} must hold keys of 40 characters (Z85), one in a line")
    return lines
