"""An in-memory cluster driven by its caller's clock: for unit and screenshot tests, and for ``--backend demo``.

It starts no process and reaches no machine, so it is never the proof that a feature works: that is the work of the
backends that do. It is a package of three files, since what the demo cluster holds and what its pods print would
hide the backend itself.
"""

from __future__ import annotations

from l2rtui.backends.fake.backend import FakeBackend

__all__ = ["FakeBackend"]
