"""Client certificates without a file."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User


async def test_the_certificates_of_the_kubeconfig_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    access = Access("c", "k", "https://127.0.0.1:1", User("u", b"not a certificate", b"not a key"))
    config = make_credentials(access)
    assert isinstance(config, Credentials)
    api = Api(access, config)
    with pytest.raises(ApiError, match="client certificate and key of u cannot be used"):
        await api.get_json("/version")
    assert list(tmp_path.iterdir()) == []
    await api.close()
