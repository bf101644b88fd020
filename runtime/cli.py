"""Command `l2r-runtime`: start one process of a run. Launchers call it; by hand it is good for experiments.

`main` installs the signal handlers first and imports afterwards: a process that gets SIGTERM while it still starts
ends in order, and `--help` imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from runtime.base.signals import Stop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from runtime.base.metrics import Console
    from runtime.base.training import Settings
    from runtime.rl.roles.launch_context import Context

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

exit codes: 0 finished or ended by SIGTERM, 1 failed, 2 wrong use, 3 refused by the learner, 65 numbers not finite,
66 the environment breaks its interface or its spaces, 143 ended by SIGTERM before the work was done (drive, encode,
elastic, classify, step, fetch, setup, ps, ps-worker; a worker whose environment did not return from a step)
"""
_BEFORE_COMMANDS: Final = ("elastic", "fetch", "setup", "step", "supervise")
"""Roles that run a command, which follows ``--``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; without ``arguments`` that of this process, which ends."""
    if arguments is not None:
        return _run(arguments)
    try:
        code = _run(sys.argv[1:], is_process=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    # Printed as without this; but then Python would wait for the threads of an environment for ever.
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
        code = 1
    from runtime.base.processes import end_process

    return end_process(code)


def _run(arguments: Sequence[str], *, is_process: bool = False) -> int:
    stop = Stop()
    stop.install()
    options = _options(arguments)
    options.is_process = is_process
    from runtime.base import contract
    from runtime.base.addresses import EndpointError
    from runtime.base.errors import (
        EnvironmentFault,
        FailedError,
        InterruptedWorkError,
        NotFiniteError,
        PeerRefusedError,
        SetupError,
    )
    from runtime.base.training import SettingsError
    from runtime.sim.wire.errors import SimulatorError

    try:
        _use_program(getattr(options, "program", None))
        return int(options.start(options, stop))
    except (SetupError, SettingsError) as error:
        return _complain(error, contract.EXIT_USAGE)
    except PeerRefusedError as error:
        return _complain(error, contract.EXIT_REFUSED)
    except InterruptedWorkError as error:
        return _complain(error, contract.EXIT_INTERRUPTED)
    except NotFiniteError as error:
        return _complain(error, contract.EXIT_NOT_FINITE)
    except EnvironmentFault as error:
        return _complain(error, contract.EXIT_ENVIRONMENT)
    except (EndpointError, FailedError, SimulatorError, OSError) as error:
        return _complain(error, contract.EXIT_FAILED)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `command` is everything after the first ``--``."""
    # Cut first: argparse would take the options of the command for its own.
    separator = argv.index("--") if "--" in argv else len(argv)
    parser = _parser()
    options = parser.parse_args(argv[:separator])
    options.command = list(argv[separator + 1 :])
    if options.command and options.role not in _BEFORE_COMMANDS:
        parser.error(f"{options.role} takes no command behind --")
    return options


def _parser() -> argparse.ArgumentParser:
    import argparse

    from runtime.jobs import classify, elastic, fetch, setup, steps, supervise
    from runtime.jobs import parameter_server as ps
    from runtime.rl import encoding as encoders
    from runtime.rl import policies
    from runtime.sim import reference as simulator
    from runtime.sim.control import control_cli

    class Version(argparse.Action):
        """Action that looks the version up only when needed: importlib.metadata takes tens of milliseconds."""

        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            from importlib.metadata import PackageNotFoundError, version

            from runtime.base.contract import PROTOCOL_VERSION

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
    learner = roles.add_parser("learner", help="receive segments, update the policy, publish it, keep checkpoints")
    worker = roles.add_parser("worker", help="act with the newest policy and send segments to the learner")
    evaluator = roles.add_parser("evaluator", help="score the newest policy from the start line")
    modules = (policies, encoders, simulator, control_cli, elastic, classify, ps, steps, supervise, fetch, setup)
    for module in modules:
        module.add_parser(roles)
    config = roles.add_parser("config", help="show every setting, its value under L2R_CONFIG, and its meaning")
    config.add_argument("--json", action="store_true", help="only the values, as one JSON object")
    config.add_argument(
        "--check", action="store_true", help="show nothing; end with 2 if environment and method do not fit them"
    )
    config.add_argument(
        "--make", action="store_true", help="with --check: make the environment once, reset it and take a step"
    )
    config.add_argument(
        "--copies", action="store_true", help="measure how many num_envs a worker needs here, for some seconds"
    )
    config.set_defaults(start=_config)
    for command in (
        learner,
        worker,
        evaluator,
        config,
        *(roles.choices[name] for name in ("drive", "export", "encode")),
    ):
        command.add_argument("--program", metavar="FILE", help="Python file with classes that the settings name")
    alert = roles.add_parser("alert", help="send a test to the targets of L2R_ALERTS, or report a dead learner")
    what = alert.add_mutually_exclusive_group(required=True)
    what.add_argument("--test", action="store_true", help="one message to each target")
    what.add_argument("--ended", metavar="REASON", default="", help="how the learner ended, once for each rule")
    alert.add_argument("--limit", action="store_true", help="with --ended: a limit has ended it")
    alert.set_defaults(start=_alert)
    # Only for the learner's own use, so both are without a line of help.
    roles.add_parser("inference").set_defaults(start=_infer)
    track = roles.add_parser("track")
    track.add_argument("folder")
    track.set_defaults(start=_track)
    roles.choices["simulator"].set_defaults(start=_simulate)
    roles.choices["simulators"].set_defaults(start=lambda options, _: control_cli.run(options))
    # Defaults of the parser itself serve the commands that set none.
    parser.set_defaults(start=_start)
    return parser


def _config(options: argparse.Namespace, _stop: Stop) -> int:
    from runtime.base import contract
    from runtime.base.training import describe, describe_method, parse

    training = parse(os.environ.get(contract.ENV_CONFIG, ""))
    if options.check:
        from runtime.rl.roles.settings_check import check_settings, try_environment

        check_settings(training)
        if options.make:
            try_environment(training)
        return contract.EXIT_DONE
    if options.copies:
        return _copies(training)
    described = list(describe(training))
    if options.json:
        print("{" + ", ".join(f'"{name}": {value}' for name, value, _ in described) + "}")
        return contract.EXIT_DONE
    for name, value, meaning in (*described, *describe_method(training)):
        print(f"{name:24} {value}\n{'':24} {meaning}")
    return contract.EXIT_DONE


def _use_program(path: str | None) -> None:
    """Let the module of a run's own classes be imported by the name of its file."""
    if path is None:
        return
    from pathlib import Path

    from runtime.base.errors import SetupError

    if not Path(path).is_file():
        raise SetupError(f"--program: there is no file {path}")
    # Last: a file that is named like a module of ours or of Python's must not take its place.
    sys.path.append(str(Path(path).resolve().parent))


def _copies(training: Settings) -> int:
    """Measure the environment with more and more copies, and print the smallest sufficient number."""
    from runtime.base import contract
    from runtime.rl.roles.launch_context import bound_to_one_thread

    bound_to_one_thread()  # before NumPy is imported: a worker has one
    from runtime.rl.roles.settings_check import enough_copies, measure_copies

    rates = measure_copies(training)
    for rate in rates:
        print(f"{rate.num_envs:5} copies {rate.steps_per_second:12,.0f} env steps/s")
    print(f"num_envs: {enough_copies(rates)}")
    return contract.EXIT_DONE


def _start(options: argparse.Namespace, stop: Stop) -> int:
    """Run one process of a run to its end, as the child of one that names its end where that is needed."""
    from runtime.rl.roles import death_watch

    if not options.is_process or not death_watch.is_needed(os.environ, options.role):
        return _run_role(options, stop)
    if (code := death_watch.end_of_child(os.environ, options.role, stop)) is not None:
        return code
    return death_watch.signed(_run_role(options, stop), stop)


def _run_role(options: argparse.Namespace, stop: Stop) -> int:
    from runtime.base import contract
    from runtime.base.errors import EnvironmentFault
    from runtime.base.gpu_meter import visible_uuids
    from runtime.base.metrics import Console, record
    from runtime.rl.roles.launch_context import Context, bound_numeric_threads, ended_by_environment

    context, console = Context.from_environment(os.environ, options.role), Console()
    # Checked before torch is imported: a mistake in the variables is reported at once, not after three seconds.
    folder = context.learner_folder() if options.role == "learner" else None
    if uuids := visible_uuids(os.environ):
        console.record(record(contract.GPU_RECORD, {"uuids": list(uuids)}))
    # OpenMP and BLAS read the number of threads when they are loaded, so this precedes the imports below.
    bound_numeric_threads(context)
    try:
        return _run_in(context, folder, stop, console)
    # Nothing of ours ends a role so: code 0 would say that its work is done.
    except BaseException as ended:
        if isinstance(ended, Exception):
            raise
        raise EnvironmentFault(ended_by_environment(context.settings.environment, ended)) from ended


def _run_in(context: Context, folder: Path | None, stop: Stop, console: Console) -> int:
    """Run the role of a context; ``folder`` is the learner's."""
    from runtime.base import contract

    if folder is not None:
        from runtime.base import descriptors
        from runtime.base.trackers import check_installed
        from runtime.rl.roles.settings_check import try_environment

        # Before torch is imported: within a second the reason is the run's, and no worker is waited for.
        check_installed(context.settings.log_to)
        tried = None
        if os.environ.get(contract.ENV_TRY_ENVIRONMENT) != "0":
            tried = try_environment(context.settings)
            stop.keep()
        from runtime.rl.roles import learner

        descriptors.raise_limit(has_reserve=True)
        return learner.run(context, folder, stop, console, tried, main)
    if context.role == "worker":
        from runtime.rl.roles import worker

        worker.run(context, stop, console)
    else:
        from runtime.rl.roles import evaluator

        evaluator.run(context, stop, console)
    return contract.EXIT_DONE


def _alert(options: argparse.Namespace, _stop: Stop) -> int:
    from runtime.rl.roles import alert

    if options.test:
        return alert.send_test(os.environ)
    return alert.report_death(os.environ, options.ended, is_by_limit=options.limit)


def _infer(_options: argparse.Namespace, _stop: Stop) -> int:
    """Answer the workers of the learner that started this process; a signal to both is the learner's to handle."""
    from runtime.rl.roles import remote_inference

    return remote_inference.run()


def _track(options: argparse.Namespace, _stop: Stop) -> int:
    """Send the records of the learner that started this process; it ends with its standard input."""
    from pathlib import Path

    from runtime.rl.roles import tracking
    from runtime.rl.roles.launch_context import Context

    return tracking.run(Path(options.folder), Context.from_environment(os.environ, "learner"))


def _simulate(options: argparse.Namespace, _stop: Stop) -> int:
    """Run a reference simulator; it belongs to no run and needs no variables of one."""
    from runtime.base import contract
    from runtime.base.errors import SetupError
    from runtime.sim import reference as simulator

    try:
        simulator.start(options)
    except ValueError as error:
        raise SetupError(str(error)) from error
    return contract.EXIT_DONE


def _complain(error: Exception, code: int) -> int:
    for line in str(error).splitlines():
        print(f"l2r-runtime: {line}", file=sys.stderr)
    return code
