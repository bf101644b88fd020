"""Independent client of the lab's simulator, written only from the facts of its protocol.

It shares no code with `runtime.sim`: the WebSocket is implemented on a plain socket, and every format is written
out here a second time. It does the same as Learn-to-Race's own client, in the same order: connect, open a level,
bind the pose port, enable a camera before setting it, configure the driver, poll until steering is echoed, drive.
"""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import struct
import threading
import time

import numpy as np
import zmq


class Control:
    """JSON-RPC in WebSocket text frames, in lock-step, ids from 1."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            f"GET / HTTP/1.1\r\nUpgrade: websocket\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101"), answer
        self.id = 0

    def send(self, text: str) -> None:
        payload, mask = text.encode(), os.urandom(4)
        size = len(payload)
        head = bytes([0x81, 0x80 | size]) if size < 126 else bytes([0x81, 0x80 | 126]) + struct.pack(">H", size)
        self.sock.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload)))

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.sock.recv(count - len(data))
            assert chunk, "the simulator closed the connection"
            data += chunk
        return data

    def receive(self) -> str:
        first, second = self.exactly(2)
        assert first == 0x81, "one unfragmented text frame"
        assert second < 128, "a server does not mask"
        size = second
        if size == 126:
            (size,) = struct.unpack(">H", self.exactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.exactly(8))
        return self.exactly(size).decode()

    def call(self, method: str, **params: object) -> object:
        self.id += 1
        self.send(json.dumps({"jsonrpc": "2.0", "params": params, "id": self.id, "method": method}))
        answer = json.loads(self.receive())
        assert answer["id"] == self.id
        assert "result" in answer, answer
        return answer["result"]

    def close(self) -> None:
        self.sock.close()


class PoseThread:
    """Receives 126-byte datagrams forever; any other size ends it, as it ends the lab's client."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("0.0.0.0", port))  # noqa: S104  (as the lab's client does)
        self.sock.settimeout(0.2)
        self.data = np.zeros(30)
        self.count = 0
        self.ends = False
        self.problem = ""
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.ends:
            try:
                datagram = self.sock.recv(1024)
            except TimeoutError:
                continue
            if len(datagram) != 126:
                self.problem = f"a pose of {len(datagram)} bytes"
                return
            self.data = np.array(struct.unpack("=fbbffffffffffffdddffffffffffff", datagram))
            self.count += 1

    def close(self) -> None:
        self.ends = True
        self.thread.join()
        self.sock.close()


class CameraSocket:
    """A conflated SUB socket; single-frame messages of a header of 40 bytes and BGR rows."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.sock = self.context.socket(zmq.SUB)
        self.sock.setsockopt(zmq.SUBSCRIBE, b"")
        self.sock.setsockopt(zmq.CONFLATE, 1)
        self.sock.setsockopt(zmq.LINGER, 0)
        self.sock.connect(address)

    def image(self, seconds: float = 60.0) -> np.ndarray:
        assert self.sock.poll(int(1000 * seconds)), "no image came"
        message = self.sock.recv()
        head = struct.unpack("iiiiiqq", message[:40])
        height, width, channels, depth = head[1:5]
        assert depth == 0
        assert len(message) == 40 + height * width * channels
        return np.frombuffer(message[40:], np.uint8).reshape(height, width, channels)[:, :, ::-1]

    def close(self) -> None:
        self.sock.close()
        self.context.term()


def to_enu(latitude: float, longitude: float, altitude: float, reference: list[float]) -> np.ndarray:
    """WGS-84 to metres east, north, up about a reference point, by way of earth-centred coordinates."""
    a, e2 = 6378137.0, 0.00669437999014

    def ecef(lat: float, lon: float, alt: float) -> np.ndarray:
        phi, lam = math.radians(lat), math.radians(lon)
        n = a / math.sqrt(1 - e2 * math.sin(phi) ** 2)
        return np.array(
            [
                (n + alt) * math.cos(phi) * math.cos(lam),
                (n + alt) * math.cos(phi) * math.sin(lam),
                (n * (1 - e2) + alt) * math.sin(phi),
            ]
        )

    phi, lam = math.radians(reference[0]), math.radians(reference[1])
    rotation = np.array(
        [
            [-math.sin(lam), math.cos(lam), 0],
            [-math.sin(phi) * math.cos(lam), -math.sin(phi) * math.sin(lam), math.cos(phi)],
            [math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)],
        ]
    )
    return rotation @ (ecef(latitude, longitude, altitude) - ecef(*reference))


class LabClient:
    """The complete client, for one car."""

    def __init__(self, ports: dict[str, int], track: dict[str, object] | None = None) -> None:
        self.ports = ports
        self.track = track
        self.control = Control(ports["control"])
        self.poses = PoseThread(ports["pose"])
        self.actions = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.cameras: dict[str, CameraSocket] = {}

    def configure(self, level: str, cameras: dict[str, int]) -> None:
        self.control.call("open_level", level_name=level)
        driver = {"DriverAPIClass": "VApiUdp", "DriverAPI_UDP_SendAddress": "0.0.0.0", "InputSource": "AI"}  # noqa: S104
        for name, port in cameras.items():
            assert self.control.call("enable_sensor", veh_id=0, sensor_name=name) == 0
            parameters = {
                "ColorPublisher : Addr": f"tcp://0.0.0.0:{port}",
                "Format": "ColorBGR8",
                "FOVAngle": 90,
                "Width": 512,
                "Height": 384,
                "bAutoAdvertise": True,
            }
            self.set_params(name, parameters)
            self.cameras[name] = CameraSocket(f"tcp://127.0.0.1:{port}")
        self.set_params("ArrivalVehicleDriver", driver)

    def set_params(self, sensor: str, parameters: dict[str, object]) -> None:
        pairs = [{"name": name, "value": value} for name, value in parameters.items()]
        assert self.control.call("set_sensor_params", veh_id=0, sensor_name=sensor, parameters=pairs) == 0

    def act(self, steering: float, acceleration: float, gear: int = 1) -> None:
        self.actions.sendto(struct.pack("=ffb", steering, acceleration, gear), ("127.0.0.1", self.ports["action"]))

    def reset(self) -> None:
        self.control.call("reset_level")
        params = {"sensor_name": "ArrivalVehicleDriver", "parameter_name": "bADModeInput", "value": True}
        self.control.call("set_sensor_param", veh_id=0, **params)
        for _ in range(500):
            self.act(1.0, 1.0)
            if abs(self.poses.data[0]) > 0.05:
                return
            time.sleep(0.1)
        raise AssertionError("steering was never echoed")

    def observe(self) -> np.ndarray:
        """The pose with east, north and up in metres, in the fields of the lab's client."""
        pose = self.poses.data.copy()
        assert self.track is not None
        enu = to_enu(pose[16], pose[15], pose[17], self.track["ReferencePoint"])
        pose[16], pose[15], pose[17] = enu
        return pose

    def close(self) -> None:
        self.control.close()
        self.poses.close()
        self.actions.close()
        for camera in self.cameras.values():
            camera.close()
