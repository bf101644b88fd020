"""Learner/worker exchange over ZeroMQ and shared memory: protocol, state machines, transport; no algorithm."""
