"""`l2r-runtime simulators`: status, restart, signal and camera image, from another process of the worker's pod.

It runs in the pod, started by `l2rtui exec` or `kubectl exec`, so it works the same on every backend. This process
reads the camera itself, so that an image does not cost the worker a training step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from runtime.base import contract
from runtime.sim.wire import protocol

if TYPE_CHECKING:
    import argparse

    from runtime.sim.wire.camera import Image

FRAME_SECONDS: Final = 10.0
"""Longest wait for an image."""
CAMERA: Final = "CameraFrontRGB"
WIDTH: Final = 160


def add_parser(roles: Any) -> None:
    """Add the subcommands to `l2r-runtime`."""
    parser = roles.add_parser("simulators", help="start and watch the simulators of this pod's worker")
    what = parser.add_subparsers(dest="what", required=True, metavar="status|restart|signal|frame")
    what.add_parser("status", help="how each of them is, as JSON")
    restart = what.add_parser("restart", help="end one; the worker restarts it for the next episode")
    signal = what.add_parser("signal", help="send one a signal")
    signal.add_argument("signal", help="its name or number, such as USR1")
    image = what.add_parser("frame", help="one camera image as a binary PPM")
    cameras = sorted(protocol.CAMERA_PORTS)
    image.add_argument("--camera", default=CAMERA, choices=cameras, help="default %(default)s")
    image.add_argument("--width", type=int, default=WIDTH, help="most columns of pixels (default %(default)s)")
    for subparser in (restart, signal, image):
        subparser.add_argument("--index", type=int, default=0, help="which of the worker's simulators (default 0)")


def run(options: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""
    from runtime.sim.control import control_socket
    from runtime.sim.wire.errors import SimulatorError

    if not (pod_id := os.environ.get(contract.ENV_POD_ID, "")):
        print(f"l2r-runtime: this process is not in a pod: {contract.ENV_POD_ID} is not set", file=sys.stderr)
        return contract.EXIT_USAGE
    try:
        if options.what == "frame":
            frame(pod_id, options.index, options.camera, options.width)
        else:
            values = {name: getattr(options, name) for name in ("index", "signal") if hasattr(options, name)}
            print(json.dumps(control_socket.send_request({"do": options.what, **values}, pod_id)))
    except (control_socket.ControlSocketError, SimulatorError, OSError) as error:
        print(f"l2r-runtime: {error}", file=sys.stderr)
        return contract.EXIT_FAILED
    return contract.EXIT_DONE


def frame(pod_id: str, index: int, camera: str, width: int) -> None:
    """Write the newest image of a camera to standard output. Raises ControlSocketError, SimulatorError."""
    from runtime.sim.control.control_socket import ControlSocketError, send_request

    simulators = send_request({"do": "status"}, pod_id)["simulators"]
    facts = next((simulator for simulator in simulators if simulator["index"] == index), None)
    if facts is None:
        raise ControlSocketError(f"simulator {index} does not exist: there are {len(simulators)}, numbered from 0")
    if "host" not in facts:
        raise ControlSocketError(f"simulator {index} is {facts['state']}: there is nothing to see")
    sys.stdout.buffer.write(ppm(smaller(picture(facts, camera), width)))
    sys.stdout.buffer.flush()


def picture(facts: dict[str, Any], camera: str) -> Image:
    """Return an image, (height, width, 3) in BGR, uint8. A camera that the worker does not use is enabled
    meanwhile.
    """
    from runtime.sim.control.control_socket import ControlSocketError
    from runtime.sim.wire import rpc_methods
    from runtime.sim.wire.camera import CameraReceiver, Cameras
    from runtime.sim.wire.controller import Controller

    port = protocol.camera_port(camera, facts["camera_base"])
    is_ours = camera not in facts["cameras"]
    with Controller(facts["host"], facts["ports"]["control"]) as controller:
        if is_ours:
            controller.call(rpc_methods.enable_sensor(camera))
        cameras = Cameras()
        receiver = CameraReceiver(cameras, f"tcp://{facts['host']}:{port}")
        try:
            # In lock-step a frame only follows an action, so an idle worker sends none.
            deadline = time.monotonic() + FRAME_SECONDS
            while not receiver.receive():
                if time.monotonic() > deadline:
                    sentence = f"{camera} sent no image within {FRAME_SECONDS:g} s; is anybody driving?"
                    raise ControlSocketError(sentence)
                time.sleep(0.01)
        finally:
            newest = receiver.newest
            receiver.close()
            cameras.close()
            if is_ours:
                controller.call(rpc_methods.disable_sensor(camera))
    if newest is None or newest.image.shape[2] < 3:
        raise ControlSocketError(f"{camera} sends no colours")
    return newest.image[..., :3]


def smaller(image: Image, width: int) -> Image:
    """Subsample an image to at most this many columns."""
    step = max(1, -(-image.shape[1] // max(8, width)))
    return image[::step, ::step]


def ppm(image: Image) -> bytes:
    """Encode a BGR image as a binary PPM (P6), which needs no library to read."""
    height, width, _ = image.shape
    return f"P6 {width} {height} 255\n".encode() + image[..., ::-1].tobytes()
