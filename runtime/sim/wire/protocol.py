"""The simulator's wire protocol as bytes and names, for both sides (standard library only).

Taken from Learn-to-Race's public client. Our controller and our reference simulator share this file, so a mistake
here would go unnoticed between them. The tests therefore implement the protocol a second time (``lab_client``).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtime.base import bounded_json

CONTROL_PORT: Final = 16000
ACTION_PORT: Final = 7077
POSE_PORT: Final = 7078
DRIVER: Final = "ArrivalVehicleDriver"
"""Name of the sensor that drives a vehicle."""
DRIVER_MODE: Final = "bADModeInput"
MAIN_MENU: Final = "MainMenu"
"""Response of ``get_level`` before a level is open."""

CAMERA_PORTS: Final[Mapping[str, int]] = {
    "CameraFrontRGB": 8008,
    "CameraLeftRGB": 8009,
    "CameraRightRGB": 8010,
    "CameraFrontSegm": 9008,
    "CameraLeftSegm": 9009,
    "CameraRightSegm": 9010,
    "CameraBirdsEye": 10008,
    "CameraBirdsEyeSegm": 10009,
}
"""Cameras and their default ports."""
CAMERA_ADDRESS: Final = "ColorPublisher : Addr"
"""Name of the parameter with a camera's ZeroMQ address."""


def camera_port(camera: str, base: int | None) -> int:
    """Return the port of a camera of the first car: relative to ``base``, or the lab's own if that is None."""
    return CAMERA_PORTS[camera] if base is None else base + list(CAMERA_PORTS).index(camera)


# --- action ---------------------------------------------------------------------------------------------
# `=`: standard sizes without alignment, as in the lab's client.
_ACTION: Final = struct.Struct("=ffb")
ACTION_BYTES: Final = _ACTION.size
MIN_ACCELERATION: Final = -16.0
"""m/s^2"""
MAX_ACCELERATION: Final = 6.0
"""m/s^2"""
NEUTRAL, DRIVE, REVERSE, PARK = range(4)


class WireError(ValueError):
    """Bytes that violate the protocol."""


@dataclass(frozen=True, slots=True)
class Action:
    """Action of a driver: ``steering`` in [-1, 1], ``acceleration`` in m/s^2, and a gear."""

    steering: float
    acceleration: float
    gear: int = DRIVE

    def pack(self) -> bytes:
        """Return the datagram. Raises WireError for values outside the protocol's bounds."""
        if not (-1.0 <= self.steering <= 1.0 and MIN_ACCELERATION <= self.acceleration <= MAX_ACCELERATION):
            raise WireError(
                f"steering {self.steering} and acceleration {self.acceleration} must be within [-1, 1] and "
                f"[{MIN_ACCELERATION:g}, {MAX_ACCELERATION:g}] m/s^2"
            )
        if self.gear not in (NEUTRAL, DRIVE, REVERSE, PARK):
            raise WireError(f"gear {self.gear} is not one of 0 (neutral), 1 (drive), 2 (reverse) and 3 (park)")
        return _ACTION.pack(self.steering, self.acceleration, self.gear)

    @classmethod
    def unpack(cls, datagram: bytes) -> Action:
        """Decode a datagram; values out of range are clipped. Raises WireError for a wrong size or NaN."""
        if len(datagram) != ACTION_BYTES:
            raise WireError(f"an action has {ACTION_BYTES} bytes, this has {len(datagram)}")
        steering, acceleration, gear = _ACTION.unpack(datagram)
        if not (math.isfinite(steering) and math.isfinite(acceleration)):
            raise WireError("an action with numbers that are not finite")
        clipped = max(MIN_ACCELERATION, min(MAX_ACCELERATION, acceleration))
        return cls(max(-1.0, min(1.0, steering)), clipped, gear if NEUTRAL <= gear <= PARK else NEUTRAL)


# --- pose -----------------------------------------------------------------------------------------------
_POSE: Final = struct.Struct("=fbbffffffffffffdddffffffffffff")
POSE_BYTES: Final = _POSE.size
POSE_VALUES: Final = 30
STEERING, GEAR, MODE = 0, 1, 2
VELOCITY: Final = slice(3, 6)
"""m/s: forward, left, up"""
ACCELERATION: Final = slice(6, 9)
"""m/s^2, as measured by an accelerometer in the car: 9.81 upwards at rest on level ground."""
ANGULAR_VELOCITY: Final = slice(9, 12)
"""rad/s about the forward, left and upward axis"""
YAW, PITCH, ROLL = 12, 13, 14
"""rad; yaw is 0 to the north and increases counter-clockwise."""
LONGITUDE, LATITUDE, ALTITUDE = 15, 16, 17
"""degrees, degrees, m"""
RPM: Final = slice(18, 22)
BRAKE: Final = slice(22, 26)
TORQUE: Final = slice(26, 30)
"""N m"""


def pack_pose(values: tuple[float, ...] | list[float]) -> bytes:
    """Return the datagram of the 30 values."""
    return _POSE.pack(*values)


def unpack_pose(datagram: bytes) -> tuple[float, ...]:
    """Decode a datagram into its 30 values. Raises WireError for a wrong size or values that are not finite."""
    if len(datagram) != POSE_BYTES:
        raise WireError(f"a pose has {POSE_BYTES} bytes, this has {len(datagram)}")
    values = _POSE.unpack(datagram)
    if not all(map(math.isfinite, values)):
        raise WireError("a pose with numbers that are not finite")
    return values


# --- camera ---------------------------------------------------------------------------------------------
# Native alignment: 4 bytes of padding before the 8-byte numbers, as the lab's simulator writes a C struct.
_CAMERA: Final = struct.Struct("iiiiiqq")
CAMERA_HEADER_BYTES: Final = _CAMERA.size
DEPTH_UINT8: Final = 0
_DEPTH_BYTES: Final = (1, 1, 2, 2, 4, 4, 8)  # of OpenCV's CV_8U, 8S, 16U, 16S, 32S, 32F, 64F
MAX_SIDE: Final = 8192
"""Pixels; a larger header value counts as garbage."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Header before a frame's pixels. The lab's client reads neither sequence nor time."""

    height: int
    width: int
    channels: int
    depth: int
    """OpenCV's code: 0 is 8-bit unsigned."""
    sequence: int = 0
    time_ns: int = 0
    """Simulated time."""

    def pack(self) -> bytes:
        """Return the 40 bytes."""
        return _CAMERA.pack(0, self.height, self.width, self.channels, self.depth, self.sequence, self.time_ns)

    @classmethod
    def unpack(cls, message: bytes | memoryview) -> FrameHeader:
        """Decode the header of a complete message. Raises WireError if header and size do not match."""
        if len(message) < CAMERA_HEADER_BYTES:
            raise WireError(f"a camera message has at least {CAMERA_HEADER_BYTES} bytes, this has {len(message)}")
        _, height, width, channels, depth, sequence, time_ns = _CAMERA.unpack_from(message)
        fits = 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and 0 < channels <= 4 and 0 <= depth <= 6
        size = CAMERA_HEADER_BYTES + height * width * channels * (_DEPTH_BYTES[depth] if fits else 0)
        if not fits or size != len(message):
            size_text = f"{height}x{width}x{channels} of depth {depth}"
            raise WireError(f"a camera message of {len(message)} bytes says {size_text}")
        return cls(height, width, channels, depth, sequence, time_ns)


# --- control --------------------------------------------------------------------------------------------
def request(number: int, method: str, params: Mapping[str, Any]) -> str:
    """Return a JSON-RPC 2.0 request as text."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": dict(params), "id": number})


@dataclass(frozen=True, slots=True)
class RpcReply:
    """Response with an id; ``error`` is None if there is a result."""

    number: int
    result: Any
    error: str | None


def reply_of(text: str | bytes) -> RpcReply:
    """Decode a response. Raises WireError if it is not a JSON-RPC response, or lacks the id of a request."""
    try:
        document = bounded_json.loads(text)
    except ValueError as error:
        raise WireError("an answer that is not JSON") from error
    if not isinstance(document, dict):
        raise WireError("the answer is not a JSON object")
    number = document.get("id")
    if type(number) is not int:  # not isinstance: true is an int in Python
        raise WireError("an answer without the id of a request")
    if "result" in document:
        return RpcReply(number, document["result"], None)
    problem = document.get("error", "neither result nor error")
    message = problem.get("message", problem) if isinstance(problem, dict) else problem
    return RpcReply(number, None, str(message)[:500])
