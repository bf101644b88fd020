"""A user-defined method is checked from the text of its file: only for a missing class or a missing method."""

from __future__ import annotations

import pytest

from l2rtui.services.training_preflight import class_problem

WHOLE = """
class Base(Algorithm):
    def update(self, batch): ...
    policy_weights = update

class Mine(Base):
    def tensors(self): ...
"""


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("mine:Mine", WHOLE, ""),
        ("mine:Base", WHOLE, "Base of mine.py has no tensors"),
        ("mine:Yours", WHOLE, "mine.py has no class Yours"),
        ("mine:Mine", "class Mine:\n    def f(", "mine.py is no Python: line 2"),
        ("mine:Mine", "class Mine(algos.Algorithm):\n    x = 1", "no update and no policy_weights and no tensors"),
        ("mine:Mine", "from lab import PPO\nclass Mine(PPO): ...", ""),
        ("lab.methods:Mine", "x = 1", ""),
        ("sac", "x = 1", ""),
        ("mine:Mine", "", ""),
    ],
)
def test_what_the_text_shows(name, text, problem):
    said = class_problem("algorithm", name, "mine.py", text)
    assert problem in said
    assert bool(problem) == bool(said)


def test_an_environment_has_its_three_methods():
    text = "class Mass:\n    def start(self, draws): ...\n    def step(self, state, action): ...\n"
    problem = class_problem("environment", "mine:Mass", "mine.py", text)
    assert problem == "Mass of mine.py has no observe"
    whole = text + "    def observe(self, state): ...\n"
    assert class_problem("environment", "mine:Mass", "mine.py", whole) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class Net(nn.Module):\n    def forward(self, vector, pictures): ...", ""),
        ("class Net(torch.nn.Module):\n    size = 3", "Net of mine.py has no forward"),
        ("from lab import Base\nclass Net(Base): ...", ""),
        ("class Other: ...", "mine.py has no class Net"),
    ],
)
def test_a_network_has_a_forward(text, problem):
    said = class_problem("network", "mine:Net", "mine.py", text)
    assert problem in said
    assert bool(problem) == bool(said)
