"""Proxies, and client certificates without a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.tls import proxy_for
from l2rtui.errors import ConfigError


def test_proxies_come_from_the_kubeconfig_or_the_environment(monkeypatch):
    access = Access("c", "k", "https://k:6443", User(), proxy_url="http://p:3128")
    assert proxy_for(access) == "http://p:3128"
    monkeypatch.setenv("https_proxy", "http://e:1")
    monkeypatch.setenv("no_proxy", "other")
    assert proxy_for(replace(access, proxy_url="")) == "http://e:1"
    monkeypatch.setenv("no_proxy", "k")
    assert proxy_for(replace(access, proxy_url="")) is None
    with pytest.raises(ConfigError, match="not supported"):
        proxy_for(replace(access, proxy_url="socks5://me:secret@p"))


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
