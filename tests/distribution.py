"""Distribution of the tests over the workers of pytest-xdist: `--dist loadgroup`, for thousands of tests."""

from __future__ import annotations

from typing import Final

import pytest

HEAVY: Final = {
    "tests/runtime/rl/algos/": "methods",
    "tests/runtime/rl/": "torch",
    "tests/runtime/base/test_metrics.py": "torch",
    "tests/l2rtui/cloud/aws/": "moto",
}
"""Groups of files that import what takes three CPU seconds or more: each group has one worker.

The two largest are apart, so that neither runs longer than the rest beside it.
"""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a heavy import on one worker, unless they have a group of their own."""
    for item in items:
        group = next((group for path, group in HEAVY.items() if item.nodeid.startswith(path)), "")
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Return the scheduler of `--dist loadgroup`, and xdist's own for any other."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Groups(LoadGroupScheduling):
        """Groups and the cases of each function, of which a worker keeps only those that it has not finished.

        xdist counts all that a worker ever got after each test: 20 CPU seconds for 8,000 tests. A message for each
        function instead of each case halves the rest.
        """

        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("[")[0]

        def mark_test_complete(self, node, item_index, duration=0):
            super().mark_test_complete(node, item_index, duration)
            group = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][group].values()):
                del self.assigned_work[node][group]

    return Groups(config, log)
