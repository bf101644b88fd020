"""A worker that drives a simulator until it is killed; it reports each started process as one JSON line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runtime.sim.control.simulator_session import SimulatorSession
from runtime.sim.launchers.process import SimulatorProcess
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire.errors import SimulatorError
from runtime.sim.wire.udp_io import Receiver


def main(folder: str, options: str) -> None:
    """Drive forever, whatever happens to the simulator."""
    spec = SimulatorSpec.from_mapping(json.loads(options))

    def start(wanted: SimulatorSpec) -> SimulatorProcess:
        handle = SimulatorProcess(wanted, Path(folder))
        started.append(handle)
        return handle

    started: list[SimulatorProcess] = []
    drive = SimulatorSession(spec, "harbour", receiver=Receiver(), start=start)
    while True:
        drive.begin(None)
        handle = started[-1]
        handle.ended()
        line = {"mark": handle.mark, "shim": handle._shim.pid, "simulator": handle.pid}
        print(json.dumps({**line, "control": drive.supervisor.addresses.control}), flush=True)
        try:
            while True:
                drive.act(0.0, 0.1)
                drive.observe()
        except SimulatorError as error:
            print(json.dumps({"lost": str(error)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
