"""An API server in memory for claims and secrets."""

from __future__ import annotations

import pytest

from tests.fakes.kubernetes_objects import ObjectServer, serving


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as running:
        yield running


@pytest.fixture
async def connect(server):
    """Return the open connection, as the backend does."""
    api = server.api()

    async def opened():
        return api

    yield opened
    await api.close()
