"""Gives a process the simulated device as soon as it imports torch; workers never do, and stay unchanged."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = str(Path(__file__).parents[4])


class _WithDevice(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        from tests.fakes.cuda.simulation import install

        install()


class _Torch(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        if ROOT not in sys.path:
            sys.path.append(ROOT)
        import tests.fakes.cuda.library  # noqa: F401  (before torch)

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithDevice(spec.loader)
        return spec


sys.meta_path.insert(0, _Torch())
