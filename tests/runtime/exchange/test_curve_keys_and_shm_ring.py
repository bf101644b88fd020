"""Keys of the exchange and the ring in shared memory: agreement, and refusals."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace
from zmq.utils import z85

from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.transport import curve_keys
from runtime.exchange.transport.curve_keys import (
    CLIENT_PUBLIC,
    CLIENT_SECRET,
    SERVER_PUBLIC,
    SERVER_SECRET,
    KeysError,
)
from runtime.exchange.transport.shared_memory import HEAD_BYTES, RingReader, RingWriter, SharedMemoryError

pytestmark = pytest.mark.usefixtures("no_leaks")
linux = pytest.mark.skipif(sys.platform != "linux", reason="sealed memory files are Linux's")


def test_keys_are_those_that_zeromq_would_make() -> None:
    for _ in range(5):
        made = curve_keys.make_files()
        assert zmq.curve_public(made[SERVER_SECRET]) == made[SERVER_PUBLIC]
        assert zmq.curve_public(made[CLIENT_SECRET]) == made[CLIENT_PUBLIC]
    alice = "77076d0a7318a57d3c16c17251b26645df4c2f92ebc099f16e5a1e8b1d2e6b0d"
    for secret in (bytes.fromhex(alice), bytes(32), b"\xff" * 32):
        assert curve_keys.public_key(secret) == z85.decode(zmq.curve_public(z85.encode(secret)))


def test_both_sides_derive_fitting_keys_from_a_token_and_strangers_others() -> None:
    learner, peer = curve_keys.from_token("secret")
    assert peer.public in learner.allowed
    assert peer.server == learner.public == zmq.curve_public(learner.secret)
    assert curve_keys.from_token("secret") == (learner, peer)
    assert not curve_keys.from_token("other")[0].allowed & learner.allowed
    for value in (learner, peer):
        assert value.secret.decode() not in repr(value)


def test_key_files_are_read_and_damage_is_a_sentence(tmp_path: Path) -> None:
    made = curve_keys.make_files()
    for name, content in made.items():
        (tmp_path / name).write_bytes(content + b"\n")
    other = curve_keys.make_files()[CLIENT_PUBLIC]
    (tmp_path / CLIENT_PUBLIC).write_bytes(made[CLIENT_PUBLIC] + b"\n" + other + b"\n")
    learner, peer = curve_keys.read_learner(tmp_path), curve_keys.read_peer(tmp_path)
    assert learner.allowed == {made[CLIENT_PUBLIC], other}
    assert (peer.public, peer.server) == (made[CLIENT_PUBLIC], learner.public)
    for damage in (b"", b"short", b"x" * 41, b"~" * 40):
        (tmp_path / SERVER_SECRET).write_bytes(damage)
        with pytest.raises(KeysError, match=SERVER_SECRET):
            curve_keys.read_learner(tmp_path)
    (tmp_path / CLIENT_SECRET).unlink()
    with pytest.raises(KeysError, match="cannot be read"):
        curve_keys.read_peer(tmp_path)


@linux
def test_what_is_put_into_a_ring_is_read_from_it_without_a_copy() -> None:
    writer = RingWriter(4, 8)
    reader = RingReader(writer.message())
    writer.put(6, [SegmentArena.of(b"a" * 8), SegmentArena.of(b"b" * 8)])
    assert bytes(reader.arena(6, 2)) == b"a" * 8 + b"b" * 8
    assert reader.arena(7, 2).nbytes == 0, "the ring ends before"
    view = reader.arena(6, 1)
    writer.put(6, [SegmentArena.of(b"c" * 8)])
    assert bytes(view) == b"c" * 8
    view.release()
    writer.close()
    assert bytes(reader.arena(6, 1)[:3]) == b"ccc", "the mapping outlives the worker"
    reader.close()


@linux
def test_segments_that_do_not_fill_their_slots_begin_at_them() -> None:
    writer = RingWriter(4, 8)
    reader = RingReader(writer.message())
    writer.put(5, [SegmentArena.of(b"abc"), SegmentArena.of(b"defgh"), SegmentArena.of(b"i")])
    slots = bytes(reader.arena(5, 3))
    assert (slots[:3], slots[8:13], slots[16:17]) == (b"abc", b"defgh", b"i")
    writer.close()
    reader.close()


@linux
def test_a_ring_that_is_not_what_was_told_is_refused(tmp_path: Path) -> None:
    writer = RingWriter(4, 8)
    offer = writer.message()
    lies = {
        "another host": replace(offer, place="elsewhere"),
        "of another size": replace(offer, slots=5),
        "No such file": replace(offer, descriptor=99_999),
        "another process's memory": replace(offer, nonce="f" * 32),
        "beyond the bounds": replace(offer, slot_bytes=2**40),
    }
    for sentence, lie in lies.items():
        with pytest.raises(SharedMemoryError, match=sentence):
            RingReader(lie)
    pipe_read, pipe_write = os.pipe()
    with pytest.raises(SharedMemoryError, match="not a memory file"):
        RingReader(replace(offer, descriptor=pipe_read))
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, HEAD_BYTES + 32)
    with pytest.raises(SharedMemoryError, match="not sealed"):
        RingReader(replace(offer, descriptor=loose))
    with (tmp_path / "plain").open("w+b") as plain:
        plain.truncate(HEAD_BYTES + 32)
        # A file in memory, such as on a tmpfs, can be sealed but is not; other files cannot be.
        with pytest.raises(SharedMemoryError, match=r"Invalid argument|not sealed"):
            RingReader(replace(offer, descriptor=plain.fileno()))
    for descriptor in (pipe_read, pipe_write, loose):
        os.close(descriptor)
    writer.close()


@linux
def test_nobody_can_cut_a_ring_short_under_the_learner() -> None:
    writer = RingWriter(4, 8)
    offer = writer.message()
    for change in (lambda: os.ftruncate(offer.descriptor, 0), lambda: os.ftruncate(offer.descriptor, 10**6)):
        with pytest.raises(PermissionError):
            change()
    with pytest.raises(PermissionError):
        fcntl.fcntl(offer.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    writer.close()


@pytest.mark.process
def test_the_protocol_s_keys_and_machines_need_neither_numpy_nor_torch_nor_sockets() -> None:
    machines = "runtime.exchange.machines.membership, runtime.exchange.machines.session"
    modules = f"runtime.exchange.transport.curve_keys, runtime.exchange.protocol.framing, {machines}"
    script = f"import sys, {modules}; sys.exit(bool({{'zmq', 'numpy', 'torch'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
