"""The parts without processes: wire formats, signs of life, budgets, positions, maps, images and measures."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rl.envs.l2r_task import CarPose, KinematicSample, Race, Recorder, log_dimensionless_jerk, rms_curvature
from runtime.sim.control.supervisor import Budget, LivenessMonitor
from runtime.sim.launchers import shim
from runtime.sim.launchers.simulator_process import Cause, ProcessEnd
from runtime.sim.reference.render import Camera, mount_of, paint
from runtime.sim.reference.world import Car
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import SimulatorSpecError
from runtime.sim.wire.udp_io import ActionBounds, _tagged, untagged
from runtime.tracks.maps import LocalFrame, MapError, from_json, load_map, own_map, plain_name, short_name
from runtime.tracks.track import COURSES, make_track

# --- the wire -------------------------------------------------------------------------------------------


def test_sizes_and_places_are_those_of_the_protocol():
    assert protocol.Action(0.5, -2.0, 1).pack() == struct.pack("=ffb", 0.5, -2.0, 1)
    pose = protocol.pack_pose([0.5, 1, 1, *range(3, 30)])
    assert len(pose) == 126
    assert struct.unpack_from("<d", pose, 54)[0] == 15.0
    assert struct.unpack_from("<f", pose, 110)[0] == 26.0
    header = protocol.FrameHeader(384, 512, 3, 0, 7, 9).pack()
    assert len(header) == 40
    assert struct.unpack_from("<iiii", header, 4) == (384, 512, 3, 0)
    assert struct.unpack_from("<qq", header, 24) == (7, 9)


@pytest.mark.parametrize(
    ("steering", "acceleration", "gear"), [(1.01, 0, 1), (0, 6.1, 1), (0, -16.1, 1), (0, 0, 4), (math.nan, 0, 1)]
)
def test_an_action_beyond_the_bounds_is_refused(steering, acceleration, gear):
    with pytest.raises(protocol.WireError):
        protocol.Action(steering, acceleration, gear).pack()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    for read in (protocol.Action.unpack, protocol.unpack_pose, protocol.FrameHeader.unpack, protocol.reply_of):
        try:
            read(data)
        except protocol.WireError:
            pass  # the only allowed error


@given(st.floats(-1, 1), st.integers(0, 63))
def test_a_numbered_steering_is_as_good_as_the_plain_one_and_tells_its_number(steering, number):
    tagged = _tagged(steering, number)

    assert abs(tagged) <= 1.0
    assert tagged == pytest.approx(steering, abs=2e-5)
    assert struct.unpack("=I", struct.pack("=f", tagged))[0] % 64 == number
    assert untagged(tagged) == untagged(_tagged(steering, (number + 1) % 64))


def test_bounds_of_an_agent_lie_within_those_of_the_protocol():
    assert ActionBounds(-0.3, 0.3, -1.0, 6.0).scaled(1.0, -1.0) == (0.3, -1.0)
    assert ActionBounds().scaled(-7.0, 0.5) == (-1.0, 3.0)
    for wrong in (
        (-1.1, 1.0, -16.0, 6.0),
        (-1.0, 1.0, -17.0, 6.0),
        (0.1, 1.0, -16.0, 6.0),
        (-1.0, 1.0, -16.0, 7.0),
    ):
        with pytest.raises(SimulatorSpecError):
            ActionBounds(*wrong)


# --- life -----------------------------------------------------------------------------------------------


def test_silence_on_either_side_is_a_hang_and_says_which():
    vitals = LivenessMonitor(heartbeat_seconds=10, pose_seconds=2)
    assert vitals.check(1000.0) is None, "nothing is expected before the first sign"
    vitals.answered(0.0)
    vitals.posed(0.0)
    assert vitals.check(1.9) is None
    assert "no pose for 3.0 s" in vitals.check(3.0).sentence
    vitals.posed(11.0)
    assert vitals.check(11.0).sentence == "the simulator hangs: no answer on its control port for 11.0 s"
    vitals.answered(11.0)
    assert vitals.check(12.0) is None


def test_a_budget_waits_longer_each_time_and_is_spent():
    budget = Budget(restarts=3, window_seconds=100, first_seconds=1, longest_seconds=3)

    assert [budget.failed(at) for at in (0, 1, 2)] == [1, 2, 3]
    assert budget.failed(3) is None
    assert budget.failed(300) == 1, "old failures are forgotten"


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (ProcessEnd(code=0), Cause.EXITED),
        (ProcessEnd(code=3), Cause.EXITED),
        (ProcessEnd(signal=11), Cause.CRASHED),
        (ProcessEnd(signal=6), Cause.CRASHED),
        (ProcessEnd(signal=9), Cause.KILLED),
        (ProcessEnd(signal=9, out_of_memory=True), Cause.OUT_OF_MEMORY),
        (ProcessEnd(signal=60), Cause.CRASHED),
    ],
    ids=str,
)
def test_an_end_has_a_cause_and_a_sentence(ended, cause):
    assert ended.failure().cause is cause
    assert ended.failure().sentence.startswith("the simulator ")


@pytest.mark.parametrize(
    "files",
    [
        {
            "/proc/self/cgroup": b"0::/kubepods/x\n",
            "/sys/fs/cgroup/kubepods/x/memory.events": b"oom 4\noom_kill 3\n",
        },
        {
            "/proc/self/cgroup": b"3:cpu:/y\n5:memory:/y\n0::/\n",
            "/sys/fs/cgroup/memory/y/memory.oom_control": b"under_oom 0\noom_kill 3\n",
        },
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_what_the_kernel_ended_for_memory_is_counted_in_our_control_group(monkeypatch, files):
    monkeypatch.setattr(shim, "_read", lambda path: files.get(path, b""))

    assert shim.oom_kills() == 3


# --- places ---------------------------------------------------------------------------------------------


@given(st.floats(-85, 85), st.floats(-179, 179), st.floats(-3000, 3000), st.floats(-3000, 3000), st.floats(-50, 50))
def test_local_and_geodetic_positions_undo_each_other(latitude, longitude, east, north, up):
    frame = LocalFrame(latitude, longitude, 100.0)

    assert frame.to_local(*frame.to_geodetic(east, north, up)) == pytest.approx((east, north, up), abs=1e-4)


def test_a_degree_of_latitude_is_as_long_as_geodesy_says():
    assert LocalFrame(45.0, 7.0, 0.0).to_local(45.001, 7.0, 0.0)[1] == pytest.approx(111.132, abs=0.005)
    assert LocalFrame(0.0, 7.0, 0.0).to_local(0.0, 7.001, 0.0)[0] == pytest.approx(111.3195, abs=0.005)


def test_levels_are_compared_by_their_plain_names():
    path = "../../../ArrivalSim/Content/Ribbon/anglesey_national/anglesey_national.umap"
    assert short_name(path) == "anglesey_national"
    assert plain_name(path) == plain_name("AngleseyNational") == "angleseynational"


@pytest.mark.parametrize("name", COURSES)
def test_a_course_written_as_a_file_is_the_same_course(name, tmp_path):
    mine = own_map(name)
    (tmp_path / "track.json").write_text(json.dumps(mine.to_json()))
    read = load_map(str(tmp_path / "track.json"))

    assert read.track.length == pytest.approx(mine.track.length, rel=1e-3)
    assert read.track.left.mean() == pytest.approx(mine.track.left.mean(), rel=0.02)
    assert read.track.right.mean() == pytest.approx(mine.track.right.mean(), rel=0.02)
    assert read.frame == mine.frame


def test_a_clockwise_course_has_its_inside_on_the_right():
    t = np.linspace(0, -2 * np.pi, 200, endpoint=False)
    circle = np.column_stack([np.cos(t), np.sin(t), 0 * t])
    ring = {"Inside": (45 * circle).tolist(), "Outside": (58 * circle).tolist()}
    centre = np.column_stack([50 * np.cos(t), 50 * np.sin(t)]).tolist()
    track = from_json("ring", {"ReferencePoint": [51, -1, 60], "Centre": [*centre, centre[0]], **ring}).track

    assert track.right.mean() == pytest.approx(5.0, abs=0.1)
    assert track.left.mean() == pytest.approx(8.0, abs=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"Centre": [[0, 0]]},
        {"Inside": "x"},
        {"Outside": None},
        {"ReferencePoint": [91, 0, 0]},
        {"ReferencePoint": None},
    ],
    ids=str,
)
def test_a_track_file_that_cannot_be_is_refused(change):
    with pytest.raises(MapError):
        from_json("x", {**own_map("meadow").to_json(), **change})


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text("{")
    for name in ("list.json", "torn.json", "missing.json"):
        with pytest.raises(MapError):
            load_map(str(tmp_path / name))
    with pytest.raises(MapError, match="harbour"):
        load_map("monza")


# --- cars -----------------------------------------------------------------------------------------------


def driven(car: Car, steering: float, acceleration: float, seconds: float, gear: int = 1) -> None:
    car.action = protocol.Action(steering, acceleration, gear)
    for _ in range(round(seconds / 0.01)):
        car.advance(0.01, 1)


@pytest.fixture
def car() -> Car:
    return Car(np.random.default_rng(0))


FRAME = LocalFrame(52.0, -1.0, 100.0)


def test_braking_in_a_straight_line_takes_the_distance_that_physics_says(car):
    car.set_pose(0.0, 0.0, 0.0, forward=30.0)
    driven(car, 0.0, -8.0, 6.0)
    # du/dt = -(a + rolling) - drag u^2, so the distance is ln(1 + drag u^2 / (a + rolling)) / (2 drag).
    a, drag = 8.0 + 0.12, 0.0012
    expected = math.log(1 + drag * 30.0**2 / a) / (2 * drag)

    assert car.position[0] == pytest.approx(expected, rel=0.01)
    assert car.pose(FRAME)[3] == 0.0


def test_steady_cornering_is_the_circle_that_the_bicycle_model_says(car):
    car.set_pose(0.0, 0.0, 0.0, forward=10.0)
    for _ in range(60):
        forward = car.pose(FRAME)[3]
        driven(car, 0.1, min(6.0, max(-16.0, 5.0 * (10.0 - forward))), 0.1)
    pose = car.pose(FRAME)
    # Understeer of the linear bicycle: delta = L/R + K v^2/R, K = (1/Cf - 1/Cr)/g with stiffness over load.
    gradient = (1 / 17.0 - 1 / 21.0) / 9.81
    radius = (2.8 + gradient * pose[3] ** 2) / (0.1 * 0.30)

    assert pose[11] == pytest.approx(math.hypot(pose[3], pose[4]) / radius, rel=0.03)
    assert pose[7] == pytest.approx(pose[3] * pose[11], rel=0.05), "the accelerometer feels v times yaw rate"


def test_gears_do_what_their_names_say(car):
    driven(car, 0.0, 3.0, 1.0, gear=protocol.NEUTRAL)
    assert car.pose(FRAME)[3] == 0.0
    driven(car, 0.0, 3.0, 1.0, gear=protocol.REVERSE)
    assert car.pose(FRAME)[3] < -1.0
    assert car.position[0] < -0.5
    driven(car, 0.0, 3.0, 3.0, gear=protocol.DRIVE)
    assert car.pose(FRAME)[3] > 1.0
    driven(car, 0.0, 3.0, 3.0, gear=protocol.PARK)
    assert car.pose(FRAME)[3] == 0.0


def test_the_pose_says_where_the_car_is_and_where_it_heads(car):
    car.set_pose(120.0, -45.0, math.pi)
    pose = car.pose(FRAME)

    assert FRAME.to_local(pose[16], pose[15], pose[17])[:2] == pytest.approx((120.0, -45.0), abs=1e-4)
    assert pose[12] == pytest.approx(math.pi / 2), "west is a quarter turn to the left of north"
    assert np.linalg.norm(pose[6:9]) == pytest.approx(9.81, abs=0.2)


# --- pictures -------------------------------------------------------------------------------------------


def test_the_forward_view_shows_the_road_ahead_and_turns_with_the_car():
    course = own_map("harbour")
    ground = paint(course.track, segmented=True)
    camera = Camera(mount_of("CameraFrontSegm"), 128, 96, 90, ground, segmented=True)
    (x, y), yaw = course.track.centre[30], float(course.track.heading[30])
    road, grass = (128, 64, 128), (35, 142, 107)
    ahead = camera.render(x, y, yaw).copy()
    assert tuple(ahead[80, 64]) == road
    assert tuple(ahead[10, 64]) not in (road, grass), "above the horizon is sky"
    across = camera.render(x, y, yaw + math.pi / 2).copy()
    assert (across == grass).all(axis=2).sum() > (ahead == grass).all(axis=2).sum()
    beside = camera.render(x, y, yaw, [(x + 8 * math.cos(yaw), y + 8 * math.sin(yaw), yaw)])
    assert ((beside == (142, 0, 0)).all(axis=2)).sum() > 10, "a car ahead is seen"


# --- the task -------------------------------------------------------------------------------------------


def around(track, metres, side=0.0, speed=20.0):
    at = round(metres / track.step) % len(track.heading)
    heading = float(track.heading[at])
    x, y = track.centre[at]
    return CarPose(x - side * math.sin(heading), y + side * math.cos(heading), heading, speed, 9.81)


def race(laps: int = 1, max_steps: int = 5000) -> Race:
    return Race(make_track("meadow"), laps=laps, max_steps=max_steps, step_seconds=0.1)


def test_a_lap_is_counted_timed_and_ends_the_episode():
    task = race()
    track = make_track("meadow")
    task.begin(around(track, 0))
    step, metres, total = None, 0.0, 0.0
    while step is None or not (step.terminated or step.truncated):
        metres += 2.0
        step = task.step(around(track, metres))
        total += step.reward

    assert step.info["success"]
    assert step.info["laps"] == 1
    assert step.info["lap_times"][0] == pytest.approx(track.length / 20.0, abs=0.1)
    assert total == pytest.approx(track.length / 0.505, rel=0.01)
    assert step.info["metrics"]["success_rate"] == 1.0
    assert step.info["metrics"]["pct_complete"] == 100.0
    assert step.info["metrics"]["average_speed_kph"] == pytest.approx(72.0, rel=0.02)
    assert step.info["metrics"]["average_displacement_error"] == pytest.approx(0.0, abs=0.05)
    assert step.info["metrics"]["trajectory_admissibility"] == 1.0


def test_two_wheels_out_are_out_of_bounds_with_a_fine_by_speed():
    task, track = race(), make_track("meadow")
    task.begin(around(track, 10))
    aslant = around(track, 10, side=4.9)
    assert not task.step(replace(aslant, yaw=aslant.yaw + 0.3)).terminated, "one wheel may leave"
    step = task.step(around(track, 10, side=6.5))

    assert step.terminated
    assert step.info["oob"]
    assert step.reward == pytest.approx(-100.0, abs=1.0)
    assert step.info["metrics"]["num_infractions"] == 1
    assert step.info["metrics"]["trajectory_admissibility"] < 1.0


def test_the_wrong_way_ends_and_standing_cuts_an_episode():
    task, track = race(), make_track("meadow")
    task.begin(around(track, 100))
    steps = [task.step(around(track, 100 - 2 * number)) for number in range(1, 7)]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert steps[-1].info["wrong_way"]
    task.begin(around(track, 100))
    cut = [task.step(around(track, 100)) for _ in range(100)]
    assert [step.truncated for step in cut].index(True) == 99
    assert cut[-1].info["stuck"]


def test_too_slow_and_too_long_cut_an_episode():
    track = make_track("meadow")
    slow = race()
    slow.begin(around(track, 0))
    steps = [slow.step(around(track, 0.1 * number)) for number in range(1, 300)]
    assert steps[-1].info["not_progressing"]
    long = race(max_steps=3)
    long.begin(around(track, 0))
    assert [long.step(around(track, number)).info["dnf"] for number in (1, 2, 3)] == [False, False, True]


def test_segments_are_passed_from_end_to_end_and_the_next_has_a_start():
    task, track = race(), make_track("meadow")
    task.begin(around(track, 10))
    info = {}
    for metres in range(12, 200, 2):
        info = task.step(around(track, metres)).info
    assert info["segments_passed"] == 2, "the first began behind us"
    assert task.segment == 3
    x, y, _ = task.segment_start(4)
    assert (x, y) == pytest.approx(tuple(track.centre[round(0.4 * len(track.heading))]))


def test_measures_of_a_circle_are_those_of_a_circle():
    t = np.arange(0, 2 * np.pi, 0.01)
    assert rms_curvature(np.column_stack([40 * np.cos(t), 40 * np.sin(t)])) == pytest.approx(1 / 40, rel=0.01)
    recorder = Recorder([KinematicSample(2.0 * i, 0.0, 0.5, 9.81, 0, 0.1) for i in range(50)])
    metrics = recorder.metrics(0.01, infractions=0, laps=0)
    assert metrics["total_distance"] == pytest.approx(98.0)
    assert metrics["average_speed_kph"] == pytest.approx(3.6 * 98.0 / 5.0)
    assert metrics["average_displacement_error"] == 0.5
    assert metrics["movement_smoothness"] == 0.0


def test_smoothness_is_the_log_of_the_dimensionless_jerk():
    # One period of a sine of 1 s: the integral of jerk^2 is (2 pi)^2 / 2 for a peak of 1.
    t = np.arange(0, 1, 0.001)
    result = log_dimensionless_jerk(np.sin(2 * np.pi * t), 1000.0)

    assert result == pytest.approx(math.log((2 * math.pi) ** 2 / 2), abs=0.02)
