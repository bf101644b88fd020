"""Fixtures shared by all tests against scripted API servers."""

from __future__ import annotations

import os

import pytest

from l2rtui.backends.kubernetes.api.library_import import import_session

# A process imports it when it first watches; many tests shrink timeouts to fractions of a second.
import_session()


@pytest.fixture(autouse=True)
def no_authorities_of_the_system(monkeypatch):
    """Empty trust store: the library makes a TLS context for ``http://`` too, in 25 ms with the system's store."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)
