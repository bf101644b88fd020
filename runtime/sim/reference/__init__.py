"""Reference simulator: the complete wire protocol of the lab's simulator over this project's cars and tracks.

``maps`` has the courses, ``car`` and ``world`` the motion on them, ``render`` the images, ``rpc`` the control
methods as plain calls, ``server`` the sockets, the clock and the fault injection. Here are the options
of `l2r-runtime simulator`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from runtime.base.cli_options import Commands, add_command
from runtime.sim.wire import protocol

_TEXT: Final = """\
a reference simulator that speaks the lab's protocol
Simulate cars on a track behind the wire protocol of the lab's simulator.

examples:
  l2r-runtime simulator                      the lab's ports, real time; any client of its protocol can connect
  l2r-runtime simulator --fast --track ridge lock-step: the world moves with each action
  l2r-runtime simulator --track thruxton.json
  l2r-runtime simulator --print-track harbour > harbour.json
"""


def add_parser(roles: Commands) -> None:
    """Add the role and its options."""
    parser = add_command(roles, "simulator", _TEXT, start)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 lets other machines drive")
    add("--port", type=int, default=protocol.CONTROL_PORT, help="control port (%(default)s)")
    add("--action-port", type=int, default=protocol.ACTION_PORT, help="UDP port for actions (%(default)s)")
    add("--pose-host", default="127.0.0.1", help="where poses go until a client says otherwise")
    add("--pose-port", type=int, default=protocol.POSE_PORT, help="UDP port that poses go to (%(default)s)")
    add("--camera-port", type=int, default=None, help="first of 8 camera ports; left out, the lab's own")
    add(
        "--track",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="open this at the start: meadow, harbour, ridge or a track file; again for more to open by name",
    )
    add("--vehicles", type=int, default=1, help="cars, each with ports 10 further on")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--realtime", dest="fast", action="store_false", help="100 poses a second (the default)")
    pace.add_argument(
        "--fast", action="store_true", help="simulate each action (a tenth of a second) without waiting"
    )
    parser.set_defaults(fast=False)
    add("--fps", type=float, default=30.0, help="frames of each camera in a simulated second (%(default)s)")
    add("--seed", type=int, default=0, help="of sensor noise and the ground's texture")
    add("--fault", action="append", default=[], metavar="KIND[@SECONDS]", help="let something go wrong")
    add("--menu", action="store_true", help="begin in the main menu even with --track")
    add("--print-track", metavar="NAME|FILE", help="write a track in Learn-to-Race's form and end")


def start(options: argparse.Namespace) -> None:
    """Run the simulator until it ends. Raises ValueError for invalid options, OSError if an address is in use."""
    import gc

    from runtime.sim.reference.server import Fault
    from runtime.sim.reference.world import WireAddresses
    from runtime.tracks.maps import load_map, plain_name

    if options.print_track:
        import json

        json.dump(load_map(options.print_track).to_json(), sys.stdout)
        print()
        return
    ports = dict.fromkeys(("port", "action_port", "pose_port", "camera_port"), 65535)
    for name, most in {**ports, "vehicles": 16, "fps": 1000}.items():
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be above 0 and at most {most}")
    faults = tuple(Fault.parse(text) for text in options.fault)
    maps = {plain_name(text): load_map(text) for text in options.track}
    level = "" if options.menu or not options.track else options.track[0]
    from runtime.sim.reference.server import SimulatorOptions, run

    addresses = WireAddresses(
        options.host, options.port, options.action_port, options.pose_host, options.pose_port, options.camera_port
    )
    gc.freeze()  # modules stay permanently, and every full collection would walk them
    run(SimulatorOptions(addresses, options.vehicles, options.fast, options.fps, options.seed, maps, level, faults))
