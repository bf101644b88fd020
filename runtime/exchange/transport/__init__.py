"""Sockets, CURVE keys and shared memory: bytes from one process to another."""
