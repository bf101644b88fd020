"""Settings of pods: valid mounts, and the reasons why a pod does not meet Pod Security restricted."""

from __future__ import annotations

import pytest

from l2rtui.domain.containers import GPU_TOLERATION, LabelRule, Mount, PodSettings, Scheduling, Security, Toleration
from l2rtui.domain.kinds import Binding


@pytest.mark.parametrize(
    ("mounts", "problem"),
    [
        ((Mount("/data"), Mount("/mnt", claim="c", sub_path="a/b")), ""),
        ((Mount("data"),), "'data' is not absolute"),
        ((Mount("/a/../b"),), "is not absolute and plain"),
        ((Mount("/a:b"),), "is not absolute and plain"),
        ((Mount("/a"), Mount("/a/")), "/a is mounted twice"),
        ((Mount("/a", claim="c", host_path="/h"),), "names a claim and a folder of the node"),
        ((Mount("/a", claim="../c"),), "'../c' is not a claim name"),
        ((Mount("/a", claim=".."),), "'..' is not a claim name"),
        ((Mount("/a", claim="c", sub_path="/etc"),), "leaves its volume"),
        ((Mount("/a", claim="c", sub_path="x/../.."),), "leaves its volume"),
    ],
)
def test_a_mount_that_cannot_be_is_named(mounts, problem):
    found = PodSettings(mounts=mounts).mount_problem()
    assert (problem in found) if problem else found == ""


def test_pods_are_restricted_unless_something_loosens_them():
    assert PodSettings().loosenings() == ()
    settings = PodSettings(
        mounts=(Mount("/sim", host_path="/opt/sim"), Mount("/d", claim="c")),
        host_network=True,
        security=Security.BASELINE,
    )
    assert settings.loosenings() == (
        "the spec asks for security baseline",
        "/sim is the node's own folder /opt/sim",
        "it sits in the network of its node",
    )


def test_only_some_modes_say_which_device_it_is():
    assert [mode for mode in Binding if mode.chooses_gpu] == [Binding.ENV, Binding.HAMI, Binding.DRA, Binding.CPU]


@pytest.mark.parametrize(
    ("rule", "text", "allowed"),
    [
        (LabelRule("zone", values=("a",)), "zone=a", {"a"}),
        (LabelRule("zone", "In", ("a", "7")), "zone in (a, 7)", {"a", "7"}),
        (LabelRule("zone", "NotIn", ("a",)), "zone notin (a)", {"7", "12", None}),
        (LabelRule("zone", "Exists"), "zone", {"a", "7", "12"}),
        (LabelRule("zone", "DoesNotExist"), "!zone", {None}),
        (LabelRule("zone", "Gt", ("7",)), "zone gt (7)", {"12"}),
        (LabelRule("zone", "Lt", ("12",)), "zone lt (12)", {"7"}),
        (LabelRule("zone", "Lt", ("x",)), "zone lt (x)", set()),
        (LabelRule("zone", "Gt"), "zone gt ()", set()),
        (LabelRule("zone", "Newer", ("1",)), "zone newer (1)", {"a", "7", "12", None}),
    ],
)
def test_a_rule_allows_nodes_by_its_operator(rule, text, allowed):
    values = ("a", "7", "12", None)
    assert {value for value in values if rule.allows({} if value is None else {"zone": value})} == allowed
    assert str(rule) == text


def test_scheduling_is_that_of_the_spec_unless_a_patch_says_otherwise():
    settings = PodSettings(node_selector=(("disk", "ssd"),), tolerations=(Toleration("team"),))
    assert settings.scheduling == Scheduling(
        ((LabelRule("disk", values=("ssd",)),),), (Toleration("team"), GPU_TOLERATION)
    )
    patched = Scheduling(((LabelRule("zone", "Exists"),),))
    assert PodSettings(patched_scheduling=patched).scheduling is patched
    assert patched.unmet({"disk": "ssd"}) == (LabelRule("zone", "Exists"),)
    assert patched.unmet({"zone": ""}) == Scheduling().unmet({}) == ()
