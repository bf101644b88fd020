"""Tokens of an identity provider, from a real one over HTTPS: kept while valid, renewed, written back, refused."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time

import pytest
from aiohttp import web
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api import oidc as oidc_storage
from l2rtui.backends.kubernetes.api.kubeconfig import Oidc
from l2rtui.backends.kubernetes.api.oidc import OidcSource, store_tokens, token_expiry
from l2rtui.errors import L2RError
from tests.l2rtui.backends.kubernetes.api.test_proxies import socks_proxy
from tests.l2rtui.backends.kubernetes.api_server import certificate

HOUR = 3600.0
KUBECONFIG = """# mine
users:
- name: else  # has the same token, and keeps it
  user: {{auth-provider: {{name: oidc, config: {{refresh-token: old-refresh}}}}}}
- name: anna
  user:
    auth-provider:
      config:
        refresh-token: {}  # new each time
        id-token: '{}'
      name: oidc
"""


def token(expires, subject="anna"):
    """A JSON web token with the parts that a client reads; its signature is not checked here."""
    parts = ({"alg": "none"}, {"sub": subject, **({} if expires is None else {"exp": expires})})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*texts, "c2ln"))


class Provider:
    """An identity provider on 127.0.0.1; it returns the configured answer, and records its requests."""

    def __init__(self, folder, *, is_tls=True):
        self.asked = []
        self._is_tls = is_tls
        self.answer = (200, {})
        self.ca, self._key = certificate(folder)

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/realm/.well-known/openid-configuration", self._configuration)
        app.router.add_post("/token", self._token)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.ca, self._key)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls if self._is_tls else None)
        await site.start()
        self.root = f"http{'s' * self._is_tls}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _configuration(self, _):
        return web.json_response({"issuer": f"{self.root}/realm", "token_endpoint": f"{self.root}/token"})

    async def _token(self, request):
        self.asked.append((dict(await request.post()), request.headers.get("Authorization")))
        status, answer = self.answer
        return web.json_response(answer, status=status)


@pytest.fixture
async def provider(tmp_path):
    async with Provider(tmp_path) as made:
        yield made


def user(provider, tmp_path, id_token="", refresh_token="old-refresh", **more):  # noqa: S107
    """OIDC settings of a user, and the kubeconfig that holds them."""
    config = tmp_path / "config"
    config.write_text(KUBECONFIG.format(refresh_token, id_token))
    config.chmod(0o640)
    return Oidc(
        issuer=f"{provider.root}/realm",
        client_id="kubectl",
        id_token=id_token,
        refresh_token=refresh_token,
        ca=provider.ca.read_bytes(),
        source=str(config),
        user="anna",
        **more,
    )


async def test_a_token_is_used_while_it_is_good_and_nobody_is_asked(provider, tmp_path):
    good = token(time.time() + HOUR)
    login = await OidcSource(user(provider, tmp_path, good)).fetch()
    assert login.authorization == f"Bearer {good}"
    assert login.expires == token_expiry(good)
    assert provider.asked == []


@pytest.mark.parametrize("left", [-HOUR, 5.0])
async def test_one_that_has_run_out_or_soon_will_buys_another(provider, tmp_path, left):
    new = token(time.time() + HOUR, "new")
    provider.answer = (200, {"id_token": new})
    oidc = user(provider, tmp_path, token(time.time() + left), client_secret="s e:cret")
    login = await OidcSource(oidc).fetch()
    assert login.authorization == f"Bearer {new}"
    ((form, auth),) = provider.asked
    assert form == {"grant_type": "refresh_token", "refresh_token": "old-refresh", "client_id": "kubectl"}
    assert base64.b64decode(auth.removeprefix("Basic ")) == b"kubectl:s+e%3Acret"


async def test_tokens_are_written_under_the_lock_of_kubectl(provider, tmp_path, monkeypatch):
    monkeypatch.setattr(oidc_storage, "_LOCK_SECONDS", 0.2)
    new = token(time.time() + HOUR, "new")
    provider.answer = (200, {"id_token": new, "refresh_token": "new-refresh"})
    source = OidcSource(user(provider, tmp_path, token(time.time() - HOUR)))
    lock = tmp_path / "config.lock"
    lock.touch()
    before = (tmp_path / "config").read_text()
    with pytest.raises(L2RError, match=r"config\.lock is there") as caught:
        await source.fetch()
    assert "new-refresh" not in f"{caught.value} {caught.value.hint}"
    assert (tmp_path / "config").read_text() == before
    # A token replaced by the provider is not requested again: it is written as soon as possible.
    lock.unlink()
    assert (await source.fetch()).authorization == f"Bearer {new}"
    assert len(provider.asked) == 1
    assert "new-refresh" in (tmp_path / "config").read_text()
    assert not lock.exists()


async def test_a_writer_that_ends_in_time_is_waited_for(provider, tmp_path, monkeypatch):
    monkeypatch.setattr(oidc_storage, "_LOCK_SECONDS", 60.0)
    provider.answer = (200, {"id_token": token(time.time() + HOUR), "refresh_token": "new-refresh"})
    source = OidcSource(user(provider, tmp_path, token(time.time() - HOUR)))
    lock = tmp_path / "config.lock"
    lock.touch()
    fetching = asyncio.create_task(source.fetch())
    async with asyncio.timeout(60):
        while not provider.asked:
            await asyncio.sleep(0.01)
    lock.unlink()
    await fetching
    assert "new-refresh" in (tmp_path / "config").read_text()


async def test_what_another_program_has_refreshed_is_used(provider, tmp_path):
    source = OidcSource(user(provider, tmp_path, token(time.time() - HOUR)))
    theirs = token(time.time() + HOUR, "theirs")
    (tmp_path / "config").write_text(KUBECONFIG.format("their-refresh", theirs))
    assert (await source.fetch()).authorization == f"Bearer {theirs}"
    assert provider.asked == []
    # The cluster refuses it: the refresh token just obtained must be used.
    provider.answer = (200, {"id_token": token(time.time() + HOUR, "ours")})
    await source.fetch()
    assert provider.asked[0][0]["refresh_token"] == "their-refresh"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("users: [{name: anna, user: {auth-provider: {config: {refresh-token: old}}}}]",
         'users: [{name: anna, user: {auth-provider: {config: {refresh-token: "new"}}}}]'),
        ("users:\r\n- name: anna\r\n  user: {auth-provider: {config: {refresh-token: 'old', id-token: x}}}\r\n",
         'users:\r\n- name: anna\r\n  user: {auth-provider: {config: {refresh-token: "new", id-token: "t"}}}\r\n'),
        ("users:\n- name: anna\n  user:\n   auth-provider:\n    config:\n     refresh-token: |-\n      old\n# e\n",
         'users:\n- name: anna\n  user:\n   auth-provider:\n    config:\n     refresh-token: "new"\n# e\n'),
    ],
    ids=["one line", "line ends of Windows", "a block"],
)  # fmt: skip
async def test_every_form_of_yaml_is_changed_in_its_place(tmp_path, text, changed):
    (tmp_path / "k").write_bytes(text.encode())
    await store_tokens(Oidc("t", "new", source=str(tmp_path / "k"), user="anna"))
    assert (tmp_path / "k").read_bytes().decode() == changed


@pytest.mark.parametrize(
    "text", ["users: []", "users: [{name: anna, user: {token: t}}]", "users: [", "users: 7", ""]
)
async def test_a_file_that_no_longer_holds_the_user_is_left_alone(tmp_path, text):
    (tmp_path / "k").write_text(text)
    with pytest.raises(L2RError, match="its user is no longer there"):
        await store_tokens(Oidc("t", "new", source=str(tmp_path / "k"), user="anna"))
    assert (tmp_path / "k").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


async def test_the_provider_is_reached_by_the_proxy_of_the_environment(provider, tmp_path, monkeypatch):
    provider.answer = (200, {"id_token": token(time.time() + HOUR)})
    oidc = user(provider, tmp_path, token(time.time() - HOUR))
    async with socks_proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        # Only the proxy knows this name; the certificate is for 127.0.0.1, so the connection goes no further.
        port = provider.root.rpartition(":")[2]
        with pytest.raises(L2RError, match="does not answer"):
            await OidcSource(replace(oidc, issuer=f"https://login.invalid:{port}/realm")).fetch()
        assert proxy.targets == [("login.invalid", int(port))]


async def test_one_that_the_cluster_refused_is_not_given_out_again(provider, tmp_path):
    provider.answer = (200, {"id_token": token(time.time() + HOUR, "new")})
    source = OidcSource(user(provider, tmp_path, token(time.time() + HOUR)))
    first, second = await source.fetch(), await source.fetch()
    assert first != second
    assert len(provider.asked) == 1


async def test_a_new_refresh_token_is_written_to_the_kubeconfig_and_nothing_else_is_touched(provider, tmp_path):
    old, new = token(time.time() - HOUR), token(time.time() + HOUR, "new")
    provider.answer = (200, {"id_token": new, "refresh_token": "new-refresh"})
    source = OidcSource(user(provider, tmp_path, old))
    await source.fetch()
    config = tmp_path / "config"
    assert config.read_text() == KUBECONFIG.replace("'{}'", "{}").format('"new-refresh"', f'"{new}"')
    assert config.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".l2rtui-")] == []
    provider.answer = (200, {"id_token": token(time.time() + HOUR, "third")})
    await source.fetch()
    assert provider.asked[-1][0]["refresh_token"] == "new-refresh"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((400, {"error": "invalid_grant", "id_token": "x.y.z"}), "gives no new token"),
        ((200, {"access_token": "x"}), "gives no new token"),
        ((200, ["odd"]), "gives no new token"),
        ((200, {"id_token": 7}), "gives no new token"),
    ],
)
async def test_a_provider_that_refuses_is_a_sentence_without_a_secret(provider, tmp_path, answer, sentence):
    provider.answer = answer
    source = OidcSource(user(provider, tmp_path, client_secret="s3cret"))
    with pytest.raises(L2RError, match=sentence) as caught:
        await source.fetch()
    assert "old-refresh" not in f"{caught.value} {caught.value.hint}"
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


async def test_without_a_refresh_token_one_logs_in_again(provider, tmp_path):
    source = OidcSource(user(provider, tmp_path, token(time.time() - HOUR), refresh_token=""))
    with pytest.raises(L2RError, match="there is no refresh token"):
        await source.fetch()


async def test_a_provider_of_another_authority_is_not_trusted(provider, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    oidc = user(provider, tmp_path)
    foreign_value = Oidc(
        **{**{name: getattr(oidc, name) for name in oidc.__slots__}, "ca": Provider(other).ca.read_bytes()}
    )
    with pytest.raises(L2RError, match="does not answer"):
        await OidcSource(foreign_value).fetch()
    assert provider.asked == []


async def test_a_provider_that_is_away_is_said(provider, tmp_path):
    oidc = user(provider, tmp_path)
    await provider.__aexit__()
    with pytest.raises(L2RError, match="does not answer"):
        await OidcSource(oidc).fetch()


@pytest.mark.parametrize(
    ("text", "expires"),
    [(token(1700000000), 1700000000.0), (token(None), None), ("opaque", None), ("a.!!.c", None), ("a.W10.c", None)],
)
def test_when_a_token_runs_out(text, expires):
    assert token_expiry(text) == expires
