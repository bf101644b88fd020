"""Names on the command line that select nothing, and what the sentence says then."""

from __future__ import annotations

import pytest

from l2rtui.cli.targets import runs_named
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.errors import NotFoundError


def test_pods_whose_run_is_gone_are_said_to_be_left_with_the_way_to_remove_them():
    # Somebody deleted the ConfigMap of the run by hand, without what it owns.
    pods = {name: PodView(name, name, "n1", "anna", run="r") for name in ("a", "b")}
    snapshot = ClusterSnapshot(pods=pods)
    with pytest.raises(NotFoundError, match="The run r is gone, and 2 pods of it are left") as caught:
        runs_named(snapshot, ["r"])
    assert "l2rtui leaks --clean" in caught.value.hint
