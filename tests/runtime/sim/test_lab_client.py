"""A client without any code of this project drives the reference simulator for a full episode."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest

from runtime.cli import main
from runtime.tracks.maps import own_map
from tests.runtime.sim.lab_client import CameraSocket, LabClient

pytestmark = pytest.mark.process


@pytest.fixture
def client(simulators, tmp_path):
    """A client on a simulator that has a track file, which the client reads too."""
    file = tmp_path / "Thruxton.json"
    file.write_text(json.dumps(own_map("meadow").to_json()))
    ports = simulators.start("--menu", "--track", str(file))
    client = LabClient(ports, json.loads(file.read_text()))
    yield client
    client.close()


def test_a_whole_episode_with_camera_pose_and_action(client):
    assert client.control.call("get_level") == "MainMenu"
    client.configure(
        "../../../ArrivalSim/Content/Ribbon/thruxton/thruxton.umap", {"CameraFrontRGB": client.ports["camera"]}
    )
    assert client.control.call("get_level") == "thruxton"
    client.reset()

    centre = np.array(client.track["Centre"])
    start = client.observe()
    nearest = int(np.argmin(np.hypot(*(centre - start[[16, 15]]).T)))
    assert np.hypot(*(centre[nearest] - start[[16, 15]])) < 2.0, "it stands on the track of the file"
    indices, speeds, images = [], [], []
    for _ in range(40):
        # Steer towards the point 12 m ahead: in the client's terms yaw is 0 to the north, left is positive.
        pose = client.observe()
        place = pose[[16, 15]]
        nearest = int(np.argmin(np.hypot(*(centre - place).T)))
        ahead = centre[(nearest + 12) % len(centre)] - place
        error = math.atan2(-ahead[0], ahead[1]) - pose[12]
        steering = max(-1.0, min(1.0, 2.0 * math.remainder(error, math.tau)))
        client.act(steering, 3.0)
        time.sleep(0.1)
        indices.append(nearest)
        speeds.append(float(np.linalg.norm(client.observe()[3:6])))
        images.append(client.cameras["CameraFrontRGB"].image())

    assert client.poses.problem == ""
    assert speeds[-1] > 8.0
    assert 15 < (indices[-1] - indices[0]) % len(centre) < 60, "it went along the centre line, forwards"
    assert images[0].shape == (384, 512, 3)
    assert images[0].mean() > 20
    assert np.abs(images[0].astype(int) - images[-1]).mean() > 1, "the view changes as the car drives"
    last = client.poses.data
    assert abs(last[0]) <= 1.0
    assert last[1] == 1
    assert np.linalg.norm(last[6:9]) == pytest.approx(9.81, abs=4.0), "gravity is in the acceleration"


def test_poses_come_a_hundred_times_a_second_and_tell_of_the_last_action(client):
    client.configure("Thruxton", {})
    client.reset()
    rates = []
    deadline = time.monotonic() + 60
    # A busy machine loses poses; it never produces more of them.
    while not rates or (rates[-1] < 80 and time.monotonic() < deadline):
        before, began = client.poses.count, time.monotonic()
        time.sleep(1.0)
        rates.append((client.poses.count - before) / (time.monotonic() - began))

    assert 80 < rates[-1] < 120, rates
    client.act(-0.25, 2.0, 1)
    deadline = time.monotonic() + 60
    while client.poses.data[0] != -0.25 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.poses.data[0] == -0.25


def test_every_control_method_answers_as_the_lab_documents_it(client):
    call = client.control.call
    client.configure("Thruxton", {})

    assert "thruxton" in [level.lower() for level in call("get_levels")]
    assert call("get_level_vehicles") == [{"veh_id": 0, "vehicle_class_name": call("get_vehicle_classes")[0]}]
    call("set_vehicle_position", veh_id=0, location={"x": 30.0, "y": -12.0, "z": 0.0}, rotation={"yaw": 90.0})
    state = call("get_vehicle_state", veh_id=0)
    assert state["pos_xyz"][:2] == pytest.approx([30.0, -12.0], abs=0.1)
    assert state["yaw"] == pytest.approx(math.pi / 2)
    default = call("get_vehicle_params", veh_id=0)["max_drive"]
    call("set_vehicle_params", veh_id=0, parameters=[{"name": "max_drive", "value": 3.0}])
    assert call("get_vehicle_params", veh_id=0)["max_drive"] == 3.0
    call("reset_default_vehicle_params", veh_id=0)
    assert call("get_vehicle_params", veh_id=0)["max_drive"] == default
    sensors = call("get_sensors_params", veh_id=0)
    assert {"CameraFrontRGB", "CameraBirdsEyeSegm", "ArrivalVehicleDriver"} <= {
        sensor["sensor_name"] for sensor in sensors
    }
    camera = {"veh_id": 0, "sensor_name": "CameraLeftRGB"}
    assert call("set_sensor_param", **camera, parameter_name="Width", value="256") == 0
    assert call("get_sensor_param", **camera, parameter_name="Width") == 256
    assert call("enable_sensor", **camera) == 0
    assert call("get_sensor_params", **camera)["enabled"] is True
    assert call("disable_sensor", **camera) == 0
    driver = {"veh_id": 0, "sensor_name": "ArrivalVehicleDriver", "parameter_name": "bADModeInput"}
    assert call("get_sensor_param", **driver) is True


def test_every_camera_publishes_once_it_is_enabled_and_before_it_is_set(client):
    client.configure("Thruxton", {})
    for camera in ("LeftRGB", "RightRGB", "FrontSegm", "RightSegm", "BirdsEye", "BirdsEyeSegm"):
        sensor = {"veh_id": 0, "sensor_name": f"Camera{camera}"}
        assert client.control.call("enable_sensor", **sensor) == 0
        address = client.control.call("get_sensor_param", **sensor, parameter_name="ColorPublisher : Addr")
        client.cameras[camera] = CameraSocket(address)
        image = client.cameras[camera].image()
        client.control.call("disable_sensor", **sensor)

        assert image.shape == (384, 512, 3)
        colours = len(np.unique(image.reshape(-1, 3), axis=0))
        assert colours <= 6 if camera.endswith("Segm") else colours > 6


def test_manual_mode_ignores_actions_from_the_wire(client):
    client.configure("Thruxton", {})
    client.reset()
    params = {"sensor_name": "ArrivalVehicleDriver", "parameter_name": "bADModeInput", "value": False}
    client.control.call("set_sensor_param", veh_id=0, **params)
    client.act(-0.5, 6.0)
    time.sleep(0.2)

    assert client.poses.data[0] != -0.5
    assert client.poses.data[2] == 0


def test_two_cars_are_driven_apart_and_see_each_other(simulators):
    ports = simulators.start("--track", "harbour", "--vehicles", "2")
    first = LabClient(ports)
    second = LabClient({**ports, "action": ports["action"] + 10, "pose": ports["pose"] + 10})
    try:
        assert [car["veh_id"] for car in first.control.call("get_level_vehicles")] == [0, 1]
        deadline = time.monotonic() + 60
        while not (first.poses.data[3] > 2 and second.poses.data[0] == 0.5) and time.monotonic() < deadline:
            first.act(0.0, 6.0)
            second.act(0.5, 0.0)
            time.sleep(0.05)
        assert first.poses.data[3] > 2
        assert second.poses.data[3] == 0
        assert second.poses.data[0] == 0.5
    finally:
        first.close()
        second.close()


REQUESTS = [
    "",
    "{",
    "[1, 2]",
    "null",
    {"method": 5},
    {"method": "get_level", "params": [1]},
    {"method": "nonsense"},
    {"method": "open_level", "params": {"level_name": "Monza"}},
    {"method": "get_vehicle_state", "params": {"veh_id": 7}},
    {"method": "set_vehicle_position", "params": {"veh_id": 0, "location": {"x": "a"}}},
    {"method": "set_sensor_params", "params": {"sensor_name": "CameraFrontRGB", "parameters": 3}},
    {"method": "enable_sensor", "params": {"sensor_name": "CameraX"}},
    {
        "method": "set_sensor_params",
        "params": {
            "sensor_name": "ArrivalVehicleDriver",
            "parameters": [{"name": "DriverAPI_UDP_SendAddress", "value": ".."}],
        },
    },
    {"method": "set_sensor_params", "params": {"sensor_name": "CameraFrontRGB", "parameters": {"Width": -3}}},
]


def test_requests_that_cannot_be_are_answered_with_an_error_and_the_next_one_works(client):
    for asked in REQUESTS:
        client.control.send(asked if isinstance(asked, str) else json.dumps({"id": 1, **asked}))
        answer = json.loads(client.control.receive())

        assert "result" not in answer, asked
        assert answer["error"]["message"], asked
        assert client.control.call("get_level") == "MainMenu"


def test_datagrams_that_are_no_actions_change_nothing(client):
    client.configure("Thruxton", {})
    client.reset()
    client.act(0.5, 0.0)
    deadline = time.monotonic() + 60
    while client.poses.data[0] != 0.5 and time.monotonic() < deadline:
        time.sleep(0.01)
    for datagram in (b"", b"\0" * 8, b"\0" * 10, b"\xff" * 9, b"\0" * 60000):
        client.actions.sendto(datagram, ("127.0.0.1", client.ports["action"]))
    before = client.poses.count
    while client.poses.count < before + 20 and time.monotonic() < deadline:
        time.sleep(0.01)

    assert client.poses.data[0] == 0.5


def test_wrong_options_are_refused_with_a_sentence(capsys):
    for words in (
        ["--track", "nowhere"],
        ["--fault", "x"],
        ["--fault", "hang@x"],
        ["--port", "0"],
        ["--vehicles", "99"],
    ):
        assert main(["simulator", *words]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1, said


def test_a_port_that_is_taken_ends_it_with_a_sentence(simulators):
    ports = simulators.start()
    argv = ["--port", str(ports["control"]), "--action-port", str(ports["action"])]
    command = [sys.executable, "-m", "runtime", "simulator", *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "address already in use" in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_a_track_that_is_printed_is_the_track_that_is_read(simulators, tmp_path):
    text = subprocess.run(
        [sys.executable, "-m", "runtime", "simulator", "--print-track", "ridge"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(json.loads(text)) == {"ReferencePoint", "Inside", "Outside", "Centre"}
    (tmp_path / "mine.json").write_text(text)
    ports = simulators.start("--track", str(tmp_path / "mine.json"))
    client = LabClient(ports)
    try:
        assert client.control.call("get_level") == "mine"
    finally:
        client.close()


def test_a_file_named_as_learn_to_race_names_it_is_the_level_that_its_client_opens(simulators, tmp_path):
    file = tmp_path / "ThruxtonFromGoogle_2.json"
    course = own_map("ridge").to_json()
    course["ReferencePoint"] = [51.2079397, -1.60859, 0.0]
    # Its other fields, and heights in points, as in the published file.
    course |= {"Name": "ThruxtonGoogle", "Version": "2", "Direction": 0, "Zone": [{"Type": 0, "ID": 0}]}
    course["Centre"] = [[*point, 0.0] for point in course["Centre"]]
    file.write_text(json.dumps(course))
    client = LabClient(simulators.start("--menu", "--track", str(file)), json.loads(file.read_text()))
    try:
        client.configure("Thruxton", {})
        client.reset()
        centre = np.array(client.track["Centre"])[:, :2]
        distances = []
        for _ in range(60):
            client.act(0.0, 1.0)
            time.sleep(0.02)
            distances.append(np.hypot(*(centre - client.observe()[[16, 15]]).T).min())
    finally:
        client.close()
    assert max(distances) < 30.0


def test_a_level_without_a_file_is_the_protocols_error_where_a_file_is_named(simulators, tmp_path):
    file = tmp_path / "ThruxtonOfficial.json"
    file.write_text(json.dumps(own_map("ridge").to_json()))
    client = LabClient(simulators.start("--menu", "--track", str(file)))
    try:
        client.control.send(
            json.dumps(
                {"jsonrpc": "2.0", "method": "open_level", "params": {"level_name": "VegasNorthRoad"}, "id": 1}
            )
        )
        assert "error" in json.loads(client.control.receive())
    finally:
        client.close()
