"""The published Learn-to-Race client drives our reference simulator on one of its own track files.

    git clone https://github.com/learn-to-race/l2r
    python -m venv peer && peer/bin/pip install gym==0.26.2 'numpy<2' scipy matplotlib pyyaml websocket-client pyzmq
    python -m tests.bench.learn_to_race --checkout l2r --python peer/bin/python

The client only knows the lab's ports (16000, 7077, 7078, 8008), so they must be free.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

STEPS = 60
TRACK = "l2r/track/thruxton/ThruxtonFromGoogle_2.json"

# Run by the Python that has the client's requirements: it imports no code of this project.
CLIENT = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from l2r import build_env
camera = {"name": "CameraFrontRGB", "Addr": "tcp://0.0.0.0:8008", "sim_addr": "tcp://127.0.0.1:8008"}
env = build_env(["Thruxton"], {"ip": "127.0.0.1", "quiet": True}, [camera], env_ip="127.0.0.1")
env.reset()
centre, reward, distances, done = env.racetrack.centerline_arr[:, :2], 0.0, [], False
while len(distances) < int(sys.argv[2]) and not done:
    observation, gained, done, info = env.step([0.0, 0.3])
    reward += gained
    distances.append(np.hypot(*(centre - observation["pose"][[16, 15]]).T).min())
image = observation["images"]["CameraFrontRGB"]
print(f"{len(distances)} steps, at most {max(distances):.1f} m from the centre line, return {reward:.0f}, "
      f"image {image.shape} of mean {image.mean():.0f}")
"""


def main(argv: list[str] | None = None) -> int:
    """Start the simulator on the client's own track, and drive."""
    parser = argparse.ArgumentParser(prog="learn_to_race", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="folder of the published repository")
    parser.add_argument("--python", default=sys.executable, help="a Python with the requirements of the client")
    args = parser.parse_args(argv)
    track = args.checkout.resolve() / TRACK
    if not track.is_file():
        print(f"{track} is not there: name a checkout of learn-to-race/l2r with --checkout.", file=sys.stderr)
        return 2
    simulator = subprocess.Popen(
        [sys.executable, "-m", "runtime", "simulator", "--menu", "--track", str(track)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        print(simulator.stdout.readline() if simulator.stdout else "", end="", flush=True)
        client = [args.python, "-W", "ignore", "-c", CLIENT, str(args.checkout.resolve()), str(STEPS)]
        return subprocess.run(client, timeout=180, check=False).returncode
    finally:
        simulator.terminate()
        simulator.wait()


if __name__ == "__main__":
    sys.exit(main())
