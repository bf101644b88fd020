"""The vehicle against closed forms: the required behaviour of a bicycle on limited grip."""

from dataclasses import replace

import numpy as np
import pytest

from runtime.tracks.vehicle import GRAVITY, Vehicle, VehicleParams, VehicleState

FREE = VehicleParams(drag=0.0, rolling=0.0)


def rolling_at(*speeds: float) -> VehicleState:
    state = VehicleState.at_rest(len(speeds))
    state.forward[:] = speeds
    return state


def full(state: VehicleState, value: float) -> np.ndarray:
    return np.full(state.x.shape, value)


@pytest.mark.parametrize(("friction", "deceleration"), [(1.35, 0.95 * 1.35 * GRAVITY), (2.5, 16.0)])
def test_braking_distance_is_speed_squared_over_twice_the_deceleration(friction, deceleration):
    """Limited by grip on slicks; by the brakes if there is more grip than they can use."""
    vehicle = Vehicle(replace(FREE, friction=friction))
    state = rolling_at(10.0, 20.0, 40.0)
    speeds = state.forward.copy()
    for _ in range(600):
        vehicle.advance(state, full(state, 0.0), full(state, -16.0), 0.01, substeps=1)
    assert state.forward == pytest.approx(np.zeros(3))
    # A step of Euler's method is short by half of the first step's distance.
    assert state.x == pytest.approx(speeds**2 / (2 * deceleration) - speeds * 0.005, rel=1e-3)
    assert state.y == pytest.approx(np.zeros(3))


def test_brakes_hold_a_standing_car():
    vehicle, state = Vehicle(), VehicleState.at_rest(2)
    vehicle.advance(state, np.array([1.0, -1.0]), full(state, -16.0), 5.0, substeps=250)
    assert state.speed == pytest.approx([0.0, 0.0])
    assert state.x == pytest.approx([0.0, 0.0])


def test_acceleration_from_rest_follows_the_pedal_up_to_its_limit():
    vehicle, state = Vehicle(FREE), VehicleState.at_rest(3)
    vehicle.advance(state, full(state, 0.0), np.array([3.0, 6.0, 60.0]), 4.0, substeps=200)
    assert state.forward == pytest.approx([12.0, 24.0, 24.0])


def test_top_speed_is_where_drag_takes_all_the_drive():
    vehicle, state = Vehicle(), rolling_at(50.0)
    p = vehicle.params
    for _ in range(100):
        vehicle.advance(state, full(state, 0.0), full(state, 6.0), 1.0, substeps=50)
    assert state.forward[0] == pytest.approx(np.sqrt((p.max_drive - p.rolling) / p.drag), rel=1e-3)


def test_slow_circle_has_the_radius_of_rolling_without_slip():
    vehicle, state = Vehicle(FREE), rolling_at(2.0)
    for _ in range(50):
        vehicle.advance(state, full(state, 1.0), full(state, 0.0), 0.1)
    p = vehicle.params
    assert state.forward / state.yaw_rate == pytest.approx(p.wheelbase / np.tan(p.max_steer), rel=1e-3)


def test_fast_gentle_circle_follows_the_understeer_gradient():
    """Road-wheel angle = L / R + K v^2 / (g R), K from the stiffness of the axles (Rajamani, section 3.3)."""
    vehicle = Vehicle(FREE)
    p = vehicle.params
    gradient = 1 / p.front_stiffness - 1 / p.rear_stiffness
    speed, radius = 20.0, 400.0
    angle = p.wheelbase / radius + gradient * speed**2 / (GRAVITY * radius)
    state = rolling_at(speed)
    for _ in range(40):
        state.forward[:] = speed
        vehicle.advance(state, full(state, angle / p.max_steer), full(state, 0.0), 0.1)
    assert speed / state.yaw_rate[0] == pytest.approx(radius, rel=0.02)


@pytest.mark.parametrize("speed", [15.0, 25.0, 40.0])
@pytest.mark.parametrize("acceleration", [0.0, 6.0, -10.0])
def test_tyres_give_friction_times_gravity_and_no_more(speed, acceleration):
    """Whatever the driver does, the path curves with a radius of at least v^2 / (mu g)."""
    vehicle = Vehicle(FREE)
    state = rolling_at(*[speed] * 6)
    steering = np.array([0.1, 0.2, 0.4, 0.6, 0.8, 1.0])
    peak = np.zeros(6)
    velocity = np.exp(1j * state.yaw) * (state.forward + 1j * state.sideways)
    while state.forward.min() > 8.0 and state.yaw.max() < 3.0:
        vehicle.advance(state, steering, full(state, acceleration), 0.002, substeps=1)
        before, velocity = velocity, np.exp(1j * state.yaw) * (state.forward + 1j * state.sideways)
        peak = np.maximum(peak, np.abs(velocity - before) / 0.002)
    grip = vehicle.params.friction * GRAVITY
    assert peak.max() < 1.02 * grip
    assert peak.max() > 0.80 * grip


def test_braking_leaves_less_grip_to_turn():
    vehicle = Vehicle(FREE)
    state = rolling_at(30.0, 30.0)
    vehicle.advance(state, full(state, 0.5), np.array([0.0, -16.0]), 0.3, substeps=15)
    assert state.yaw_rate[1] < 0.6 * state.yaw_rate[0]


def test_left_and_right_are_mirror_images():
    vehicle, state = Vehicle(), rolling_at(25.0, 25.0)
    for _ in range(30):
        vehicle.advance(state, np.array([0.4, -0.4]), full(state, 2.0), 0.1)
    assert state.y[0] == pytest.approx(-state.y[1])
    assert state.x[0] == pytest.approx(state.x[1])
    assert state.yaw[0] == pytest.approx(-state.yaw[1])


def test_road_wheels_turn_at_their_rate():
    vehicle, state = Vehicle(), rolling_at(5.0)
    vehicle.advance(state, full(state, 1.0), full(state, 0.0), 0.1)
    assert state.steer[0] == pytest.approx(0.15)


def test_wild_driving_stays_finite():
    vehicle, rng = Vehicle(), np.random.default_rng(0)
    state = VehicleState.at_rest(64)
    state.forward[:] = rng.uniform(0, 70, 64)
    for _ in range(500):
        vehicle.advance(state, rng.uniform(-3, 3, 64), rng.uniform(-50, 50, 64), 0.1)
        assert np.isfinite(state.x + state.y + state.yaw + state.speed + state.yaw_rate).all()
        assert (state.forward >= 0).all()
        assert (state.speed < 80).all()
