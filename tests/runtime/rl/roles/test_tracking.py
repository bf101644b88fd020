"""Live metrics for a tracker: what is sent, once each, and that nothing of it reaches or stops the learner."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from runtime.base import trackers
from runtime.base.errors import SetupError
from runtime.base.metrics import Console
from runtime.base.signals import Stop
from runtime.base.training import parse
from runtime.rl.roles import tracking
from runtime.rl.roles.launch_context import Context
from runtime.rl.roles.settings_check import check_settings
from tests.packages import needed
from tests.runtime.conftest import eventually

KEY = "0123456789abcdef0123456789abcdef01234567"
TRACKERS = ("wandb", "mlflow")


def context(folder: Path, log_to: str = "mlflow", **train: object) -> Context:
    environ = {
        "L2R_RUN": "lab-s3",
        "L2R_RUN_ID": "5f" * 16,
        "L2R_SEED": "3",
        "L2R_ENDPOINT": f"ipc://{folder}",
        "L2R_DIR": str(folder),
        "L2R_CONFIG": json.dumps({"log_to": log_to, **train}),
    }
    return Context.from_environment(environ, "learner")


def record(kind: str, at: float, env_steps: int, **fields: object) -> str:
    return json.dumps({"l2r": kind, "time": at, "env_steps": env_steps, **fields}) + "\n"


class Service:
    """A tracker that keeps what it gets, and does not answer while ``is_down``."""

    def __init__(self) -> None:
        self.records: list[tracking.Figures] = []
        self.ends: list[bool] = []
        self.is_down = False
        self.place = "here"

    def __call__(self, _context: Context, _folder: Path) -> Service:
        if self.is_down:
            raise ConnectionError(f"no route to http://me:{KEY}@tracker for {KEY}\nand more")
        return self

    def add(self, records: list[tracking.Figures]) -> None:
        if self.is_down:
            raise ConnectionError("reset")
        self.records += records

    def end(self, *, is_done: bool) -> None:
        self.ends.append(is_done)


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setattr(tracking, "_OPEN", {"mlflow": service})
    monkeypatch.setattr(tracking, "_RETRY_SECONDS", (0.0, 0.0))
    return service


@pytest.fixture
def said():
    return []


def sender(folder: Path, said: list[str]) -> tracking.TrackerSender:
    return tracking.TrackerSender("mlflow", folder, context(folder), said.append)


def test_numbers_of_learner_and_evaluator_are_sent_once_each(tmp_path, service, said):
    file, sending = tmp_path / "metrics.jsonl", sender(tmp_path, said)
    assert sending.send()  # there is no file yet
    lag = {"policy_lag": [0, 0.5, 3], "peers": ["w-0"], "eval_return": None, "is_x": True}
    file.write_text(record("learner", 1.0, 100, mean_return=2.5, **lag) + "not a record\n" + '{"l2r":"lear')
    assert sending.send()
    (first,) = service.records
    assert first == (100, 1.0, {"mean_return": 2.5, "policy_lag": 0.5, "policy_lag_max": 3.0})
    with file.open("a") as more:
        more.write('ner","time":2.0,"env_steps":200,"mean_return":3}\n')
        more.write(record("evaluator", 2.0, 200, eval_return=9.0) + record("worker", 2.0, 200, x=1))
    assert sending.send()
    assert [one.values for one in service.records[1:]] == [{"mean_return": 3.0}, {"eval_return": 9.0}]
    # The learner begins a new file, into which it copies nothing that was sent.
    file.rename(tmp_path / "metrics.jsonl.1")
    file.write_text(record("learner", 1.0, 100, mean_return=2.5) + record("learner", 3.0, 300, mean_return=4.0))
    assert sending.send()
    assert [one.env_steps for one in service.records] == [100, 200, 200, 300]
    # So does the tracker of the learner's next start.
    assert sender(tmp_path, said).send()
    assert len(service.records) == 4
    assert said == ["mlflow: metrics go to here"]


def test_what_cannot_be_sent_is_sent_later_and_said_once(tmp_path, service, said, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    (tmp_path / "metrics.jsonl").write_text(record("learner", 1.0, 100, mean_return=2.5))
    sending, service.is_down = sender(tmp_path, said), True
    assert not any([sending.send(), sending.send()])
    (sentence,) = said
    assert (
        sentence == "mlflow: metrics are not sent, and training continues: no route to http://***@tracker for ***"
    )
    service.is_down = False
    assert sending.close(is_done=True) == 0
    assert said[1:] == ["mlflow: metrics go to here", "mlflow: metrics are sent again"]
    assert ([one.env_steps for one in service.records], service.ends) == ([100], [True])


def test_a_tracker_that_is_not_reached_at_the_end_is_a_failure_of_its_own_process(tmp_path, service, said):
    (tmp_path / "metrics.jsonl").write_text(record("learner", 1.0, 100, mean_return=2.5))
    service.is_down = True
    assert sender(tmp_path, said).close(is_done=False) == 1


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_package_is_refused_with_the_next_step(tmp_path, tracker, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", {}.get)
    sentence = (
        rf"log_to: {tracker} is not installed where the learner runs .*setup: \[\[pip, install, {tracker}\]\]"
    )
    with pytest.raises(SetupError, match=sentence):
        check_settings(parse(json.dumps({"log_to": tracker})))
    with (
        pytest.raises(SetupError, match=sentence),
        tracking.tracking(context(tmp_path, tracker), tmp_path, Stop(), Console()),
    ):
        pass


def test_an_unknown_tracker_names_those_that_there_are():
    with pytest.raises(ValueError, match=r"log_to is .*comet.*wandb.*mlflow"):
        parse('{"log_to": "comet"}')


@pytest.mark.process
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_tracker_that_hangs_or_fails_costs_the_learner_seconds_at_its_end(
    tmp_path, monkeypatch, capfd, is_stopped
):
    package = "import sys, time\nprint('loud')\nprint('loud', file=sys.stderr)\n"
    package += "time.sleep(600)\n" if is_stopped else "raise ImportError('no such symbol')\n"
    (tmp_path / "mlflow.py").write_text(package)
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd()))))
    monkeypatch.setenv("PYTHONPATH", paths)
    here = context(tmp_path)
    for name, value in {"L2R_ENDPOINT": f"ipc://{tmp_path}", "L2R_CONFIG": '{"log_to": "mlflow"}'}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "metrics.jsonl").write_text(record("learner", 1.0, 100, mean_return=2.5))
    monkeypatch.setattr(tracking, "_FAREWELL_SECONDS", (1.0, 30.0))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = Stop()
    stop.install()
    with tracking.tracking(here, tmp_path, stop, Console()):
        if is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_set()
        began = time.monotonic()
    for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        signal.signal(number, handler)
    assert time.monotonic() - began < 30
    out, err = capfd.readouterr()
    assert "mlflow: the last metrics were not sent; `l2rtui history export lab-s3 --to mlflow` sends them" in out
    assert ("no such symbol" in out) is not is_stopped
    assert "loud" not in out + err


@pytest.mark.packages
@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_package_itself_gets_the_run(tmp_path, tracker, monkeypatch):
    package = needed(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("L2R_CONFIG", '{"algorithm": "ppo"}')
    (tmp_path / "metrics.jsonl").write_text(
        record("learner", 1.0, 100, mean_return=2.5) + record("evaluator", 2.0, 200, eval_return=9.0)
    )
    said: list[str] = []
    sending = tracking.TrackerSender(tracker, tmp_path, context(tmp_path, tracker), said.append)
    assert sending.close(is_done=True) == 0, said
    if tracker == "wandb":
        (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
        eventually(lambda: b"eval_return" in file.read_bytes(), "the records in the file of W&B")
        files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
        assert not any(KEY.encode() in path.read_bytes() for path in files)
        return
    client = package.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("lab")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "lab-s3")
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "eval_return")] == [
        (200, 9.0)
    ]
    assert run.data.params == {"train.algorithm": "ppo"}
