"""Strategic merge of pod templates: lists by key, directives, malformed patches, and kubectl's own result."""

from __future__ import annotations

import json
import shutil
import subprocess
from copy import deepcopy
from typing import Any

import pytest

from l2rtui.backends.kubernetes.manifests.pod_patch import merge

POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "l2r", "team": "rl"}, "finalizers": ["a/b", "c/d"]},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "run:1",
                "command": ["run", "it"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"containerPort": 1}, {"containerPort": 2}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
                "envFrom": [{"secretRef": {"name": "keys"}}],
                "resources": {"limits": {"memory": "1Gi"}},
            },
            {"name": "beside", "image": "beside:1"},
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "tmp", "emptyDir": {}},
        ],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/hostname": "n1"},
    },
}


def main(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


CASES: dict[str, dict[str, Any]] = {
    "a map merges key by key": {"metadata": {"labels": {"team": "vision", "cost": "7"}}},
    "null deletes a key": {"metadata": {"labels": {"team": None}}, "spec": {"nodeSelector": None}},
    "null of what is not there": {"spec": {"runtimeClassName": None}},
    "containers by name": {
        "spec": {"containers": [{"name": "beside", "image": "beside:2"}, {"name": "more", "image": "m"}]}
    },
    "env by name": {
        "spec": {"containers": [{"name": "main", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]}  # noqa: E501
    },
    "mounts by path": {
        "spec": {"containers": [{"name": "main", "volumeMounts": [{"mountPath": "/tmp", "readOnly": True}]}]}
    },
    "ports by number": {
        "spec": {"containers": [{"name": "main", "ports": [{"containerPort": 2, "protocol": "UDP"}]}]}
    },
    "tolerations are replaced": {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}},
    "a command is replaced": {"spec": {"containers": [{"name": "main", "command": ["other"]}]}},
    "envFrom is replaced": {
        "spec": {"containers": [{"name": "main", "envFrom": [{"configMapRef": {"name": "c"}}]}]}
    },
    "a volume merges its source": {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]}},
    "a volume of another source": {
        "spec": {"volumes": [{"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/t"}}]}
    },
    "an element is deleted": {"spec": {"containers": [{"name": "beside", "$patch": "delete"}]}},
    "an element that is not there is deleted": {"spec": {"volumes": [{"name": "none", "$patch": "delete"}]}},
    "a map is replaced": {"spec": {"nodeSelector": {"$patch": "replace", "zone": "a"}}},
    "a list is replaced by its other elements": {
        "spec": {"volumes": [{"name": "data", "$patch": "replace"}, {"name": "v", "emptyDir": {}}]}
    },
    "a list is replaced": {"spec": {"volumes": [{"$patch": "replace"}, {"name": "v", "emptyDir": {}}]}},
    "a map is emptied": {"spec": {"nodeSelector": {"$patch": "delete"}}},
    "scalars add up": {"metadata": {"finalizers": ["e/f", "a/b"]}},
    "scalars are deleted": {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}},
    "scalars of a list that is not there": {"spec": {"$deleteFromPrimitiveList/none": ["a"]}},
    "a new list": {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
    "a new map": {
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]}}}}
    },
    "a new container with a directive inside": {
        "spec": {"initContainers": [{"name": "i", "image": "i", "env": [{"name": "A", "$patch": "delete"}]}]}
    },
    "spread constraints by topology": {
        "spec": {"topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}
    },
    "nothing": {},
}  # fmt: skip


@pytest.mark.parametrize("patch", CASES.values(), ids=CASES)
def test_neither_argument_changes(patch: dict[str, Any]) -> None:
    original, given = deepcopy(POD), deepcopy(patch)
    merge(original, given)
    assert (original, given) == (POD, patch)


def test_maps_merge_and_null_deletes() -> None:
    merged = merge(
        POD, {"metadata": {"labels": {"team": None, "cost": "7"}}, "spec": {"runtimeClassName": "nvidia"}}
    )
    assert merged["metadata"]["labels"] == {"app": "l2r", "cost": "7"}
    assert merged["spec"]["runtimeClassName"] == "nvidia"
    assert merged["spec"]["containers"] == POD["spec"]["containers"]


def test_elements_merge_by_their_key_and_new_ones_come_last() -> None:
    merged = merge(POD, CASES["env by name"])
    assert main(merged)["env"] == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "3"},
        {"name": "C", "value": "4"},
    ]
    assert main(merged)["image"] == "run:1"
    names = [item["name"] for item in merge(POD, CASES["containers by name"])["spec"]["containers"]]
    assert names == ["main", "beside", "more"]


def test_lists_without_a_key_are_replaced() -> None:
    assert merge(POD, CASES["tolerations are replaced"])["spec"]["tolerations"] == [
        {"key": "spot", "operator": "Exists"}
    ]


def test_directives_delete_replace_and_retain() -> None:
    assert [item["name"] for item in merge(POD, CASES["an element is deleted"])["spec"]["containers"]] == ["main"]
    assert merge(POD, CASES["a map is replaced"])["spec"]["nodeSelector"] == {"zone": "a"}
    assert merge(POD, CASES["a list is replaced"])["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert merge(POD, CASES["a volume of another source"])["spec"]["volumes"][1] == {
        "name": "tmp",
        "hostPath": {"path": "/t"},
    }
    assert merge(POD, CASES["a map is emptied"])["spec"]["nodeSelector"] == {}


def test_sets_of_scalars_add_up_and_shrink() -> None:
    assert merge(POD, CASES["scalars add up"])["metadata"]["finalizers"] == ["a/b", "c/d", "e/f"]
    assert merge(POD, CASES["scalars are deleted"])["metadata"]["finalizers"] == ["c/d"]


def test_a_value_of_another_type_takes_the_place_of_the_old_one() -> None:
    assert merge({"spec": {"volumes": "odd"}}, {"spec": {"volumes": [{"name": "v"}]}})["spec"]["volumes"] == [
        {"name": "v"}
    ]
    assert merge({"spec": ["odd"]}, {"spec": {"a": 1}}) == {"spec": {"a": 1}}
    odd = {"spec": {"containers": ["odd", {"name": "main"}]}}
    assert merge(odd, {"spec": {"containers": [{"name": "main", "image": "x"}]}})["spec"]["containers"][0] == "odd"


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers: an element has no name"),
        ({"spec": {"containers": ["x"]}}, "spec.containers: 'x' is not a mapping"),
        ({"spec": {"nodeSelector": {"$patch": "reduce"}}}, "spec.nodeSelector.$patch is 'reduce'"),
        (
            {"spec": {"$setElementOrder/containers": []}},
            "spec.$setElementOrder/containers is not a supported directive",
        ),
        ({"spec": {"containers": [{"name": "main", "$patch": "merge"}]}}, "of an element is 'merge'"),
        ({"spec": {"new": {"$odd": 1}}}, "spec.new.$odd is not a supported directive"),
        ({"spec": {"new": {"$patch": "replace", "$odd": 1}}}, "spec.new.$odd is not a supported directive"),
        ({"spec": {"$retainKeys": "name"}}, "spec.$retainKeys is 'name': write a list"),
        ({"metadata": {"finalizers": [{"a": 1}]}}, "metadata.finalizers is .*: write a list of plain values"),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": 7}}, "finalizers is 7: write a list"),
    ],
)
def test_malformed_patches_name_their_field(patch: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("$", r"\$")):
        merge(POD, patch)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, the reference, is not here")
@pytest.mark.parametrize("patch", CASES.values(), ids=CASES)
def test_kubectl_merges_the_same(patch: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **deepcopy(POD)}
    pod["metadata"]["name"] = "p"
    argv = ["kubectl", "patch", "--local", "--type", "strategic", "-o", "json", "-f", "-", "-p", json.dumps(patch)]
    done = subprocess.run(argv, input=json.dumps(pod), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert unordered(json.loads(done.stdout)) == unordered(merge(pod, patch))


def unordered(value: Any) -> Any:
    """Return a value that compares without the order of lists, and without empty fields, which Go omits."""
    if isinstance(value, dict):
        plain = {key: unordered(inner) for key, inner in value.items()}
        # A pod without these is printed with them.
        return {key: inner for key, inner in plain.items() if inner and key not in ("status", "creationTimestamp")}
    if isinstance(value, list):
        return sorted(map(unordered, value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
