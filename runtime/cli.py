"""`l2r-runtime`: start one process of a run. A launcher does this; by hand it serves for trying things out.

`main` takes over the signals first and imports afterwards: a process that is asked to end while it still starts
ends in order, and `--help` pays for nothing but itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from runtime.stopping import Stop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_EXAMPLES: Final = """\
a process learns what it is from variables that a launcher sets:
  L2R_ENDPOINT    where the learner listens: ipc:///FOLDER or tcp://HOST:PORT (needed)
  L2R_DIR         folder for checkpoints and records (needed by the learner)
  L2R_CONFIG      training settings as a JSON object; see `l2r-runtime config`
  L2R_RUN, L2R_RUN_ID, L2R_POD, L2R_INDEX, L2R_SEED, L2R_TOKEN_FILE, L2R_CPUS

examples:
  export L2R_ENDPOINT=ipc:///tmp/l2r L2R_DIR=/tmp/l2r
  l2r-runtime learner & l2r-runtime worker & l2r-runtime evaluator
  L2R_CONFIG='{"num_envs": 8, "total_env_steps": 100000}' l2r-runtime learner
  L2R_CONFIG='{"num_envs": 8}' l2r-runtime config

exit codes: 0 finished or ended by SIGTERM, 1 failed, 2 wrong use, 3 refused by the learner,
143 ended by SIGTERM before the work was done (elastic, classify, step, fetch, ps, ps-worker)
"""
_BEFORE_COMMANDS: Final = ("elastic", "fetch", "step")
"""What runs a command that stands behind ``--``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    stop = Stop()
    stop.install()
    options = _options(sys.argv[1:] if arguments is None else arguments)
    if options.role == "simulator":
        return _simulate(options)
    if options.role == "simulators":
        from runtime.sim import visit

        return visit.run(options)

    from runtime import contract
    from runtime.commands import FailedError, InterruptedWorkError
    from runtime.endpoint import EndpointError
    from runtime.process import NotFiniteError, RefusedError, UsageError
    from runtime.settings import SettingsError
    from runtime.sim.errors import SimulatorError

    try:
        if options.start is not None:
            return int(options.start(options, stop))
        if options.role == "config":
            _config(as_json=options.json)
        else:
            _start(options.role, stop)
    except (UsageError, SettingsError) as error:
        return _complain(error, contract.EXIT_USAGE)
    except RefusedError as error:
        return _complain(error, contract.EXIT_REFUSED)
    except InterruptedWorkError as error:
        return _complain(error, contract.EXIT_INTERRUPTED)
    except (EndpointError, FailedError, NotFiniteError, SimulatorError, OSError) as error:
        return _complain(error, contract.EXIT_FAILED)
    return contract.EXIT_DONE


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says; `command` is what stands behind the first ``--``."""
    at = words.index("--") if "--" in words else len(words)
    parser = _parser()
    options = parser.parse_args(words[:at])
    options.command = list(words[at + 1 :])
    options.start = getattr(options, "start", None)
    if options.command and options.role not in _BEFORE_COMMANDS:
        parser.error(f"{options.role} takes no command behind --")
    return options


def _parser() -> argparse.ArgumentParser:
    import argparse

    from runtime.classify import options as classify
    from runtime.elastic import options as elastic
    from runtime.fetching import options as fetching
    from runtime.ps import options as ps
    from runtime.sim import visit
    from runtime.sim.reference import options as simulator
    from runtime.steps import options as steps

    class Version(argparse.Action):
        """Looks the version up only when it is asked for."""

        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            from importlib.metadata import PackageNotFoundError, version

            from runtime.contract import PROTOCOL_VERSION

            try:
                release = version("l2rtui")
            except PackageNotFoundError:  # the container image copies the tree instead of installing it
                release = "of a source tree"
            print(f"l2r-runtime {release} (exchange {PROTOCOL_VERSION})")
            parser.exit()

    parser = argparse.ArgumentParser(
        prog="l2r-runtime",
        description="Start one process of a run: a learner, a node of an elastic job, a step, a fetch.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and end")
    roles = parser.add_subparsers(dest="role", required=True, metavar="COMMAND", title="commands")
    roles.add_parser("learner", help="take segments in, update the policy, publish it, keep checkpoints")
    roles.add_parser("worker", help="fetch the policy, roll out, send")
    roles.add_parser("evaluator", help="fetch the policy, drive from the start line, report")
    simulator.add_parser(roles)
    visit.add_parser(roles)
    for each in (elastic, classify, ps, steps, fetching):
        each.add_parser(roles)
    config = roles.add_parser("config", help="show every setting, its value under L2R_CONFIG, and its meaning")
    config.add_argument("--json", action="store_true", help="the values alone, as one JSON object")
    return parser


def _config(*, as_json: bool) -> None:
    import os

    from runtime import contract, settings

    described = list(settings.describe(settings.parse(os.environ.get(contract.ENV_CONFIG, ""))))
    if as_json:
        print("{" + ", ".join(f'"{name}": {value}' for name, value, _ in described) + "}")
        return
    for name, value, meaning in described:
        print(f"{name:24} {value}\n{'':24} {meaning}")


def _start(role: str, stop: Stop) -> None:
    """Run one process of a run to its end. The numerical libraries are imported after their threads are bounded."""
    import os

    from runtime.metrics import Console
    from runtime.process import Context, bound_numeric_threads

    context = Context.from_environment(os.environ, role)
    folder = context.learner_folder() if role == "learner" else None
    bound_numeric_threads(context)
    if folder is not None:
        from runtime import learner

        learner.run(context, folder, stop, Console())
    elif role == "worker":
        from runtime import worker

        worker.run(context, stop, Console())
    else:
        from runtime import evaluator

        evaluator.run(context, stop, Console())


def _simulate(options: argparse.Namespace) -> int:
    """Run a reference simulator; it belongs to no run and needs none of a run's variables."""
    from runtime import contract
    from runtime.sim.reference import options as simulator

    try:
        simulator.start(options)
    except ValueError as error:
        return _complain(error, contract.EXIT_USAGE)
    except OSError as error:
        return _complain(error, contract.EXIT_FAILED)
    return contract.EXIT_DONE


def _complain(error: Exception, code: int) -> int:
    print(f"l2r-runtime: {error}", file=sys.stderr)
    return code
