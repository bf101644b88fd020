"""`l2r-runtime simulators`: see to the simulators of a worker, from another process of its pod.

It runs beside the worker, which `l2rtui exec` or `kubectl exec` can arrange, so it is the same on every backend. A
camera is read here and not by the worker: one look costs no step of training.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from runtime import contract
from runtime.sim import protocol

if TYPE_CHECKING:
    import argparse

    from runtime.sim.camera import Image

FRAME_SECONDS: Final = 10.0
"""Longest wait for a picture."""
CAMERA: Final = "CameraFrontRGB"
WIDTH: Final = 160


def add_parser(roles: Any) -> None:
    """Add the words to `l2r-runtime`."""
    parser = roles.add_parser("simulators", help="see to the simulators of this pod's worker")
    what = parser.add_subparsers(dest="what", required=True, metavar="status|restart|signal|frame")
    what.add_parser("status", help="how each of them is, as JSON")
    restart = what.add_parser("restart", help="end one; the worker starts it anew for the next episode")
    signal = what.add_parser("signal", help="send one a signal")
    signal.add_argument("signal", help="its name or number, such as USR1")
    image = what.add_parser("frame", help="one camera image as a binary PPM")
    image.add_argument(
        "--camera", default=CAMERA, choices=sorted(protocol.CAMERA_PORTS), help="default %(default)s"
    )
    image.add_argument("--width", type=int, default=WIDTH, help="most columns of pixels (default %(default)s)")
    for each in (restart, signal, image):
        each.add_argument("--index", type=int, default=0, help="which of the worker's simulators (default 0)")


def run(options: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    from runtime.sim import door
    from runtime.sim.door import DoorError
    from runtime.sim.errors import SimulatorError

    pod_id = os.environ.get(contract.ENV_POD_ID, "")
    if not pod_id:
        print(f"l2r-runtime: this is no pod: {contract.ENV_POD_ID} is not set", file=sys.stderr)
        return contract.EXIT_USAGE
    try:
        match options.what:
            case "frame":
                frame(pod_id, options.index, options.camera, options.width)
            case "signal":
                request = {"do": "signal", "index": options.index, "signal": options.signal}
                print(json.dumps(door.ask(request, pod_id)))
            case "restart":
                print(json.dumps(door.ask({"do": "restart", "index": options.index}, pod_id)))
            case _:
                print(json.dumps(door.ask({"do": "status"}, pod_id)))
    except (DoorError, SimulatorError, OSError) as error:
        print(f"l2r-runtime: {error}", file=sys.stderr)
        return contract.EXIT_FAILED
    return contract.EXIT_DONE


def frame(pod_id: str, index: int, camera: str, width: int) -> None:
    """Write the newest image of a camera to standard output. DoorError, SimulatorError."""
    from runtime.sim import door
    from runtime.sim.door import DoorError

    found = door.ask({"do": "status"}, pod_id)["simulators"]
    facts = next((each for each in found if each["index"] == index), None)
    if facts is None:
        raise DoorError(f"there is no simulator {index}: there are {len(found)}, numbered from 0")
    if "host" not in facts:
        raise DoorError(f"simulator {index} is {facts['state']}: there is nothing to see")
    sys.stdout.buffer.write(ppm(smaller(picture(facts, camera), width)))
    sys.stdout.buffer.flush()


def picture(facts: dict[str, Any], camera: str) -> Image:
    """One image of a simulator, (height, width, 3) in BGR; a camera that is off is on only meanwhile."""
    from runtime.sim import calls
    from runtime.sim.camera import Cameras
    from runtime.sim.controller import Controller
    from runtime.sim.door import DoorError

    base = facts["camera_base"]
    names = list(protocol.CAMERA_PORTS)
    port = protocol.CAMERA_PORTS[camera] if base is None else base + names.index(camera)
    is_ours = camera not in facts["cameras"]
    with Controller(facts["host"], facts["ports"]["control"]) as controller:
        if is_ours:
            controller.call(calls.enable_sensor(camera))
        cameras = Cameras()
        receiver = cameras.receiver(f"tcp://{facts['host']}:{port}")
        try:
            deadline = time.monotonic() + FRAME_SECONDS
            while not receiver.receive():
                if time.monotonic() > deadline:
                    raise DoorError(f"{camera} sent no image within {FRAME_SECONDS:g} s; is anybody driving?")
                time.sleep(0.01)
        finally:
            newest = receiver.newest
            receiver.close()
            cameras.close()
            if is_ours:
                controller.call(calls.disable_sensor(camera))
    if newest is None or newest.image.shape[2] < 3:
        raise DoorError(f"{camera} sends no colours")
    return newest.image[..., :3]


def smaller(image: Image, width: int) -> Image:
    """The image with at most this many columns, by leaving pixels out."""
    step = max(1, -(-image.shape[1] // max(8, width)))
    return image[::step, ::step]


def ppm(image: Image) -> bytes:
    """A BGR image as a binary PPM (P6), which everything can read."""
    height, width, _ = image.shape
    return f"P6 {width} {height} 255\n".encode() + image[..., ::-1].tobytes()
