"""Logins from the kubeconfig, and their renewal: once for all requests, and not in a loop."""

from __future__ import annotations

import asyncio
import base64

import pytest

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.credentials import Credentials, FixedSource
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.login import ApiLogin
from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving


# --- contents of the kubeconfig ---------------------------------------------------------------------------------
async def test_tokens_and_passwords_become_headers():
    assert (await FixedSource(User(token="t")).fetch()).authorization == "Bearer t"
    basic = (await FixedSource(User(username="u", password="p")).fetch()).authorization
    assert basic == "Basic " + base64.b64encode(b"u:p").decode()
    assert (await FixedSource(User()).fetch()).authorization == ""


async def test_a_token_file_is_read_again_after_a_minute(tmp_path):
    path, now = tmp_path / "token", [1000.0]
    path.write_text("one\n")
    clock = lambda: now[0]  # noqa: E731  (a clock that is set)
    credentials = Credentials(FixedSource(User(token_file=str(path)), clock), clock)
    assert (await credentials.login()).authorization == "Bearer one"
    path.write_text("two")
    assert (await credentials.login()).authorization == "Bearer one"
    now[0] += 61
    assert (await credentials.login()).authorization == "Bearer two"


async def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ApiError, match="cannot be read: No such file"):
        await FixedSource(User("u", certificate_file=str(tmp_path / "missing"))).fetch()


# --- one login for all -----------------------------------------------------------------------------------------
class Counting:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    async def fetch(self):
        self.asked += 1
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer


async def test_ten_who_ask_at_once_get_one_login():
    source = Counting(ApiLogin("a"))
    credentials = Credentials(source)
    assert {
        (await item).authorization for item in [asyncio.create_task(credentials.login()) for _ in range(10)]
    } == {"a"}
    assert source.asked == 1


async def test_a_refused_login_is_renewed_once_for_all_and_not_in_a_loop():
    now = [0.0]
    source = Counting(ApiLogin("old"), ApiLogin("new"), ApiLogin("newer"))
    credentials = Credentials(source, monotonic=lambda: now[0])
    old = await credentials.login()
    now[0] += 11
    renewed = await asyncio.gather(*(credentials.renew(old) for _ in range(10)))
    assert ({item.authorization for item in renewed}, source.asked) == ({"new"}, 2)
    assert (await credentials.renew(renewed[0])).authorization == "new"
    now[0] += 11
    assert (await credentials.renew(renewed[0])).authorization == "newer"


async def test_a_source_that_has_just_failed_is_not_asked_again_at_once():
    now = [0.0]
    source = Counting(ApiError("no"), ApiLogin("a"))
    credentials = Credentials(source, monotonic=lambda: now[0])
    for _ in range(3):
        with pytest.raises(ApiError, match="no"):
            await credentials.login()
    assert source.asked == 1
    now[0] += 11
    assert (await credentials.login()).authorization == "a"


async def test_a_login_that_runs_out_is_renewed_before():
    now = [1000.0]
    source = Counting(ApiLogin("a", expires=1100.0), ApiLogin("b", expires=1200.0))
    credentials = Credentials(source, clock=lambda: now[0])
    assert (await credentials.login()).authorization == "a"
    now[0] = 1091.0
    assert (await credentials.login()).authorization == "b"


async def test_a_request_that_is_refused_renews_the_login_and_is_repeated_once():
    server = Server(on_list=[refusal(401, "Unauthorized")])
    async with serving(server):
        api = Api(
            Access("c", "k", server.base, User("u")),
            Credentials(Counting(ApiLogin("Bearer 1"), ApiLogin("Bearer 2"))),
        )
        api._credentials._monotonic = iter(range(0, 10**6, 20)).__next__
        await api.list("ConfigMap", None)
        assert server.tokens == ["Bearer 1", "Bearer 2"]
        server.on_list = [refusal(401, "Unauthorized")] * 5
        with pytest.raises(ApiError) as caught:
            await api.list("ConfigMap", None)
        assert caught.value.is_unauthorized
        assert len(server.tokens) <= 4
        await api.close()
