"""The in-memory backend, driven by its caller's clock: for unit and screenshot tests, and for ``--backend demo``.

It starts no process and reaches no machine, so it never proves that a feature works. Nodes, logs, simulators and
volumes of the demo cluster have files of their own.
"""

from __future__ import annotations

from l2rtui.backends.fake.backend import FakeBackend

__all__ = ["FakeBackend"]
