"""Preflight: each finding by name, refusals first."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.placement import bound_to_cpu, parse_pins, place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Finding, Severity, cluster_fields, preflight, refusals, taken_names
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Kind, Queue, QueueSystem, Resources, Role, RunSpec, SetSpec
from runtime.base.alert_rules import AlertRule
from runtime.base.limits import Limits

GIB = 2**30


def cluster(*runs, **state):
    node = Node("n", (Gpu("n", 0),), **state)
    return ClusterSnapshot({"n": node}, {}, {run: RunView(run, run, run) for run in runs})


def spec(name="r", replicas=2, set_name="w", **resources):
    one = SetSpec(set_name, Role.WORKER, ("w",), replicas=replicas, resources=Resources(**resources))
    return RunSpec(Kind.JOB, name, name, (one,))


def judge(specs, snapshot, facts=()):
    placement = place(specs, snapshot.ledger)
    uids = [str(number) for number in range(len(specs))]
    return preflight(plan_launch(specs, placement, snapshot.nodes, owner="me", uids=uids), snapshot, facts)


def sentences(findings, weight):
    return [finding.sentence for finding in findings if finding.severity is weight]


def test_a_plan_in_order_is_said_to_be():
    findings = judge([spec()], cluster())
    assert {finding.severity for finding in findings} == {Severity.OK}
    assert sentences(findings, Severity.OK) == ["the name is free", "n: every requested slot is free"]


def test_each_field_that_only_a_cluster_has_is_a_warning():
    (part,) = spec().sets
    patched = replace(part, pod=replace(part.pod, templates=("{}",)))
    queued = replace(spec(), sets=(patched, part), queue=Queue(QueueSystem.KUEUE, "team"))
    findings = list(cluster_fields([queued, spec("s")]))
    assert [(item.severity, item.subject) for item in findings] == [
        (Severity.WARNING, "r"),
        (Severity.WARNING, "r/w"),
    ]
    assert [item.sentence.partition(":")[0] for item in findings] == ["queue is ignored", "pod.template is ignored"]


def test_where_no_room_is_found_what_cannot_be_seen_is_said():
    blind = dataclasses.replace(cluster(), problems=("Nodes are known only from their pods.",))
    said = "not all can be seen: Nodes are known only from their pods"
    assert sentences(judge([spec(replicas=9)], blind), Severity.WARNING) == [said]
    assert sentences(judge([spec()], blind), Severity.WARNING) == []


def test_who_sees_no_slot_is_not_told_to_wait_for_one():
    (hint,) = {item.hint for item in judge([spec()], ClusterSnapshot()) if item.severity is Severity.REFUSAL}
    assert hint == "No slot can be seen: `l2rtui check` says which right is missing."


@pytest.mark.parametrize(
    ("specs", "runs", "words"),
    [
        ([spec("Bad_Name")], (), "'Bad_Name' is not a name"),
        ([spec(set_name="x" * 20)], (), "has 20 characters: use at most 14"),
        ([spec("taken")], ("taken",), "a run named taken exists"),
        ([spec("twice"), spec("twice")], (), "the plan holds 2 runs named twice"),
        ([spec(replicas=9)], (), "5 of 9 replicas do not fit"),
    ],
)
def test_refusals_are_sentences(specs, runs, words):
    refused = refusals(judge(specs, cluster(*runs)))
    assert any(words in finding.sentence for finding in refused)


def test_a_taken_name_has_a_next_step():
    (refused,) = refusals(judge([spec("taken")], cluster("taken")))
    assert refused.hint == "Choose another with --name, or `l2rtui destroy taken` first."


def test_taken_names_are_told_from_other_refusals():
    findings = judge([spec("taken"), spec("free", replicas=99)], cluster("taken"))
    assert len(refusals(findings)) > 1
    assert taken_names(findings) == ("taken",)


@pytest.mark.parametrize(
    ("binding", "replicas", "sentence"),
    [
        (Binding.DEVICE_PLUGIN, 4, "4 workers share its pod"),
        (Binding.DEVICE_PLUGIN, 8, "4 workers share each of its 2 pods"),
        (
            Binding.ENV,
            4,
            "each worker has its own slot: workers_per_pod only applies with binding device-plugin",
        ),
    ],
)
def test_the_plan_says_which_workers_share_a_pod(binding, replicas, sentence):
    pod = PodSettings(binding=binding)
    part = SetSpec("w", Role.WORKER, ("w",), replicas=replicas, workers_per_pod=4, pod=pod)
    findings = judge([RunSpec(Kind.LEARNER_WORKERS, "r", f"r-s{seed}", (part,)) for seed in range(2)], cluster())
    assert [item.sentence for item in findings if item.sentence == sentence and item.subject.endswith("/w")] == [
        sentence
    ]


def test_a_node_that_vanished_since_the_plan_is_refused():
    before = cluster()
    plan = plan_launch([spec()], place([spec()], before.ledger), before.nodes, owner="me", uids=["0"])
    assert [finding.sentence for finding in refusals(preflight(plan, ClusterSnapshot()))] == ["node n is gone"]


def test_a_node_whose_use_is_unknown_is_a_warning():
    before, after = cluster(), cluster(is_use_known=False)
    plan = plan_launch([spec()], place([spec()], before.ledger), before.nodes, owner="me", uids=["0"])
    assert any("cannot be listed" in text for text in sentences(preflight(plan, after), Severity.WARNING))


@pytest.mark.parametrize(
    ("asked", "there", "words"),
    [
        ({"cpu_cores": 1.5}, {"cpu_cores": 2.0}, "3 CPU cores are requested on n, which has 2"),
        (
            {"memory_bytes": 5 * GIB},
            {"memory_bytes": 8 * GIB},
            "10Gi of memory are requested on n, which has 8Gi left",
        ),
        (
            {"memory_bytes": GIB},
            {"memory_bytes": 8 * GIB, "memory_used_bytes": 7 * GIB},
            "2Gi of memory are requested on n, which has 1Gi left",
        ),
    ],
)
def test_too_little_room_is_a_warning(asked, there, words):
    (warning,) = sentences(judge([spec(**asked)], cluster(**there)), Severity.WARNING)
    assert warning.startswith(words)


@pytest.mark.parametrize("there", [{}, {"cpu_cores": 64.0, "memory_bytes": 64 * GIB}])
def test_room_that_is_enough_or_unknown_is_no_warning(there):
    assert not sentences(judge([spec(cpu_cores=2.0, memory_bytes=GIB)], cluster(**there)), Severity.WARNING)


def test_replicas_without_a_device_are_not_counted_on_a_node():
    one = SetSpec("w", Role.WORKER, ("w",), slots=0, resources=Resources(cpu_cores=1000.0))
    findings = judge([RunSpec(Kind.JOB, "r", "r", (one,))], cluster(cpu_cores=1.0))
    assert [finding.sentence for finding in findings] == ["the name is free"]


def test_facts_of_the_backend_take_their_place_in_the_order():
    facts = [
        Finding(Severity.OK, "x", "fine"),
        Finding(Severity.REFUSAL, "y", "no such command"),
        Finding(Severity.WARNING, "z", "slow"),
    ]
    weights = [finding.severity for finding in judge([spec()], cluster(), facts)]
    assert weights == [Severity.REFUSAL, Severity.WARNING, Severity.OK, Severity.OK, Severity.OK]


def test_what_is_overcommitted_is_told_with_who_is_there():
    pod = PodView("u", "other", "n", devices=(DeviceUsage(0, 0),))
    snapshot = ClusterSnapshot({"n": Node("n", (Gpu("n", 0, slots=1),))}, {"u": pod})
    specs = [spec()]
    placement = place(specs, snapshot.ledger, overcommit=True)
    plan = plan_launch(specs, placement, snapshot.nodes, owner="me", uids=["1"])
    assert sentences(preflight(plan, snapshot), Severity.WARNING) == [
        "n/0.0 is over-committed: other and another worker of this plan sit there too"
    ]
    free = replace(plan, overcommitted=(SlotId("n", 0, 7),))
    assert "n/0.7 is over-committed: others may sit there too" in sentences(
        preflight(free, snapshot), Severity.WARNING
    )


@pytest.mark.parametrize(
    ("replicas", "holder", "who"),
    [
        (1, "other", "other sits"),
        (2, "", "another worker of this plan sits"),
        (4, "", "3 other workers of this plan sit"),
        (3, "other", "other and 2 other workers of this plan sit"),
    ],
)
def test_a_shared_slot_names_all_that_sit_on_it(replicas, holder, who):
    node = Node("n", (Gpu("n", 0, slots=1),))
    pods = {"u": PodView("u", holder, "n", devices=(DeviceUsage(0, 0),))} if holder else {}
    snapshot = ClusterSnapshot({"n": node}, pods)
    specs = [RunSpec(Kind.JOB, "r", "r", (SetSpec("w", Role.JOB, ("w",), replicas=replicas),))]
    placement = place(specs, snapshot.ledger, overcommit=True)
    plan = plan_launch(specs, placement, snapshot.nodes, owner="me", uids=["1"])
    assert len(plan.runs[0].pods) == replicas
    assert sentences(preflight(plan, snapshot), Severity.WARNING) == [f"n/0.0 is over-committed: {who} there too"]


@pytest.mark.parametrize(
    ("slots", "pins", "words"),
    [
        (1, "n/0", []),
        (0, "n/0", ["1 named place is not used: no set of it takes slots, so its pods may start on any node"]),
        (
            0,
            "n/0.0-1",
            ["2 named places are not used: no set of it takes slots, so its pods may start on any node"],
        ),
    ],
)
def test_named_places_that_no_set_uses_are_a_warning(slots, pins, words):
    snapshot, pins = cluster(), parse_pins(pins)
    specs = [RunSpec(Kind.JOB, "r", "r", (SetSpec("w", Role.WORKER, ("w",), slots=slots),))]
    plan = plan_launch(specs, place(specs, snapshot.ledger, pins=pins), snapshot.nodes, owner="me", uids=["u"])
    assert sentences(preflight(replace(plan, pins=pins), snapshot), Severity.WARNING) == words


def test_the_plan_says_why_a_set_sits_on_cpu_slots():
    node = Node("n", (Gpu("n", 0),), cpu=Gpu("n", CPU, slots=8, is_cpu=True))
    snapshot = ClusterSnapshot({"n": node})
    sets = (
        SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner")),
        SetSpec("w", Role.WORKER, ("l2r-runtime", "worker"), replicas=2, may_use_cpu=True),
        SetSpec("own", Role.WORKER, ("mine",), pod=PodSettings(binding=Binding.CPU)),
    )
    specs = bound_to_cpu([RunSpec(Kind.LEARNER_WORKERS, "r", "r", sets)], snapshot.ledger)
    placement = place(specs, snapshot.ledger)
    plan = plan_launch(specs, placement, snapshot.nodes, owner="me", uids=["1"])
    findings = [finding for finding in preflight(plan, snapshot) if "CPU slots" in finding.sentence]
    assert findings == [Finding(Severity.OK, "r/w", "it sits on CPU slots: its environment needs no GPU")]


def test_limits_and_alerts_are_named_once_for_all_seeds():
    rule = AlertRule(("failed", "done"), "webhook", url_from="HOOK")
    watched = replace(spec(replicas=1), limits=Limits(wall=3600, gpu_hours=5), alerts=(rule,))
    findings = judge([watched, replace(watched, name="r2")], cluster())
    stated = sentences(findings, Severity.OK)
    assert stated.count("ends by limit wall 1 h or limit 5 GPU-hours") == 1
    assert stated.count("on failed, done: webhook of HOOK") == 1
    assert sentences(findings, Severity.WARNING) == []


def test_gpu_hours_alone_never_end_a_run_without_a_gpu():
    watched = replace(spec(replicas=0), limits=Limits(gpu_hours=5))
    assert "limits.gpu_hours never ends it: it sits on no GPU" in sentences(
        judge([watched], cluster()), Severity.WARNING
    )
