"""Mutation scores: share of the changed operators, constants and calls of a module that its quick tests notice.

python -m tests.bench mutants --only ledger --count 20

A mutant runs in a fork that has third-party packages imported and replaces the module's source as it is imported;
no file is written. Those that survive are printed for a reader: some are equivalent to the original.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
EXCHANGE, LAUNCH = "tests/runtime/exchange/test_", "tests/l2rtui/services/test_"
DOMAIN, KUBERNETES = "tests/l2rtui/domain/test_", "tests/l2rtui/backends/kubernetes/"
METHODS = "tests/runtime/rl/algos/test_"
MODULES: dict[str, tuple[str, list[str]]] = {
    "gpu_usage": (
        "l2rtui/backends/kubernetes/state/gpu_usage.py",
        [f"{KUBERNETES}state/test_{name}.py" for name in ("gpu_usage", "foreign_pods", "joiner")],
    ),
    "membership": ("runtime/exchange/machines/membership.py", [f"{EXCHANGE}membership.py"]),
    "session": ("runtime/exchange/machines/session.py", [f"{EXCHANGE}session.py", f"{EXCHANGE}validation.py"]),
    "placement": (
        "l2rtui/domain/placement.py",
        [f"{DOMAIN}placement.py", f"{DOMAIN}topology.py", f"{DOMAIN}counts.py", f"{LAUNCH}spec_gpus.py"],
    ),
    "ledger": (
        "l2rtui/domain/ledger.py",
        [f"{DOMAIN}{name}.py" for name in ("ledger", "placement", "snapshot", "counts")],
    ),
    "launcher": (
        "l2rtui/services/launcher.py",
        [
            f"{LAUNCH}launcher.py",
            *(f"{KUBERNETES}{name}.py" for name in ("actions/test_scale", "test_backend")),
            "tests/contract/test_backend.py",
        ],
    ),
    "sac": (
        "runtime/rl/algos/off_policy/sac.py",
        [
            f"{METHODS}{name}.py"
            for name in ("switches", "sac", "discrete_sac", "recurrent_sac", "moments", "augmentation")
        ],
    ),
    "ppo": (
        "runtime/rl/algos/ppo.py",
        [f"{METHODS}{name}.py" for name in ("switches", "onpolicy", "memory", "captured_updates")],
    ),
}
"""Source of each module, and the files that test it."""
QUICK = "not process and not slow and not cluster and not gpu"
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
UNCHANGED = {"annotation", "returns", "decorator_list"}
"""Fields of a node that no test can notice, or whose change is one of style."""


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the words and the changed source of each mutant."""
    tree = ast.parse(source)
    for number, node in enumerate(_nodes(tree)):
        if not _changed(copy.deepcopy(node)):
            continue
        other = copy.deepcopy(tree)
        target = next(node for count, node in enumerate(_nodes(other)) if count == number)
        before = ast.unparse(target)
        _changed(target)
        yield target.lineno, f"{before} -> {ast.unparse(target) or 'removed'}"[:160], ast.unparse(other)  # type: ignore[attr-defined]


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_log = isinstance(child, ast.Call) and ast.unparse(child.func).startswith(("log.", "_log."))
            if isinstance(child, ast.AST) and name not in UNCHANGED and not is_log:
                yield child
                yield from _nodes(child)


def _changed(node: ast.AST) -> bool:
    """Change a node in its place; return whether it is one of those that are changed."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHER:
            node.ops = [OTHER[type(operator)]()]
        case ast.BoolOp() | ast.BinOp() if type(node.op) in OTHER:
            node.op = OTHER[type(node.op)]()
        case ast.UnaryOp(op=ast.Not()):
            node.op = ast.UAdd()
            node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
        case ast.IfExp() | ast.If() if not isinstance(node.test, ast.Constant):
            node.test = ast.Constant(value=False)
        case ast.Constant(value=bool() | int()):
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        case ast.Expr(value=ast.Call()):
            node.value = ast.Constant(value=None)
        case ast.AugAssign():
            node.value = ast.Constant(value=0) if isinstance(node.op, ast.Add | ast.Sub) else node.value
            return isinstance(node.op, ast.Add | ast.Sub)
        case _:
            return False
    ast.fix_missing_locations(node)
    return True


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of a module whose source is replaced."""

    def __init__(self, path: str, source: str) -> None:
        self.name, self.path, self.source = path.removesuffix(".py").replace("/", "."), ROOT / path, source

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None  # type: ignore[arg-type]

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.path, "exec"), module.__dict__)  # noqa: S102


def _tested(path: str, source: str, tests: list[str]) -> None:
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    sys.meta_path.insert(0, _Mutated(path, source))
    pytest = importlib.import_module("pytest")
    os._exit(
        pytest.main(["-xq", "--assert=plain", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", QUICK, *tests])
    )


def is_noticed(path: str, source: str, tests: list[str], seconds: float) -> bool:
    """Return whether a test fails, or does not end, with the source in the module's place."""
    process = multiprocessing.get_context("fork").Process(target=_tested, args=(path, source, tests))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        with suppress(ProcessLookupError):
            process.kill()
        process.join()
    return process.exitcode != 0


def main(argv: list[str] | None = None) -> int:
    """Print a score and the survivors of each module; 1 if the tests fail without a mutant."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--count", type=int, default=20, help="mutants of each module, chosen by the seed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    for package in ("pytest", "msgspec", "numpy", "torch", "textual.app"):
        importlib.import_module(package)
    for name in options.only:
        path, tests = MODULES[name]
        source, began = (ROOT / path).read_text("utf-8"), time.monotonic()
        if is_noticed(path, source, tests, 600.0):
            print(f"{name}: its tests fail without a mutant", file=sys.stderr)
            return 1
        seconds = 30.0 + 5.0 * (time.monotonic() - began)
        every = list(mutants(source))
        chosen = sorted(random.Random(options.seed).sample(every, min(options.count, len(every))))
        survivors = [
            f"  {path}:{line}: {words}"
            for line, words, changed in chosen
            if not is_noticed(path, changed, tests, seconds)
        ]
        noticed = len(chosen) - len(survivors)
        print(
            f"{name}: {noticed} of {len(chosen)} mutants noticed ({len(every)} possible)",
            *survivors,
            sep="\n",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
