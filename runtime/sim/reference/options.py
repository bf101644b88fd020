"""`l2r-runtime simulator`: its options, read without importing what they start."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from runtime.sim import protocol

EXAMPLES: Final = """\
examples:
  l2r-runtime simulator                      the lab's ports, real time; any client of its protocol can connect
  l2r-runtime simulator --fast --track ridge lock-step: the world moves with each action
  l2r-runtime simulator --track thruxton.json
  l2r-runtime simulator --print-track harbour > harbour.json
"""


def add_parser(roles: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the role and its options."""
    parser = roles.add_parser(
        "simulator",
        help="a reference simulator that speaks the lab's protocol",
        description="Simulate cars on a track behind the wire protocol of the lab's simulator.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    pace.add_argument("--fast", action="store_true", help="a tenth of a second for each action, at once")
    parser.set_defaults(fast=False)
    add("--fps", type=float, default=30.0, help="frames of each camera in a simulated second (%(default)s)")
    add("--seed", type=int, default=0, help="of sensor noise and the ground's texture")
    add("--fault", action="append", default=[], metavar="KIND[@SECONDS]", help="let something go wrong")
    add("--menu", action="store_true", help="begin in the main menu even with --track")
    add("--print-track", metavar="NAME|FILE", help="write a track in Learn-to-Race's form and end")


def start(options: argparse.Namespace) -> None:
    """Run the simulator to its end. ValueError for options that cannot be; OSError where an address is taken."""
    import gc

    from runtime.sim.maps import load_map, plain_name
    from runtime.sim.reference.faults import Fault
    from runtime.sim.reference.sensors import WireAddresses

    if options.print_track:
        import json

        json.dump(load_map(options.print_track).to_json(), sys.stdout)
        print()
        return
    for name, value, most in (
        ("--port", options.port, 65535),
        ("--action-port", options.action_port, 65535),
        ("--pose-port", options.pose_port, 65535),
        ("--camera-port", options.camera_port or 1, 65535),
        ("--vehicles", options.vehicles, 16),
        ("--fps", options.fps, 1000),
    ):
        if not 0 < value <= most:
            raise ValueError(f"{name} is {value}; it must be above 0 and at most {most}")
    faults = tuple(Fault.parse(each) for each in options.fault)
    maps = {plain_name(each): load_map(each) for each in options.track}
    level = "" if options.menu or not options.track else options.track[0]
    from runtime.sim.reference.server import SimulatorOptions, run

    addresses = WireAddresses(
        options.host,
        options.port,
        options.action_port,
        options.pose_host,
        options.pose_port,
        options.camera_port,
    )
    gc.freeze()  # what is loaded stays; looking through it again and again costs more than it frees
    run(SimulatorOptions(addresses, options.vehicles, options.fast, options.fps, options.seed, maps, level, faults))
