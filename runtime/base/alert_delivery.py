"""Delivery of alerts: a webhook, the host's sendmail, a command. Each has a timeout, and none reveals an address.

``AlertSender`` has its own thread and a bounded queue: a target that hangs or fails delays nothing else. TLS
certificates are verified. Redirects are not followed: the address of a webhook is a secret, and a redirect may send
messages elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from runtime.base.alert_rules import AlertMessage, AlertRule

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a connection and of each response of a webhook; for a mail or a command, the total timeout."""
ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = (1.0, 5.0)
MAX_QUEUED: Final = 64
_SENDMAIL: Final = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "/usr/bin/sendmail")
_MAX_ADDRESS: Final = 4096


class DeliveryError(Exception):
    """A message could not be delivered; the sentence contains no webhook address."""


class Sender(Struct, frozen=True):
    """Names of a run that every message contains."""

    run: str
    run_id: str = ""
    seed: int = 0

    def fields(self, message: AlertMessage, now: float) -> dict[str, Any]:
        """Return a message as plain JSON."""
        return {
            "run": self.run,
            "run_id": self.run_id,
            "seed": self.seed,
            "state": message.state,
            "sentence": message.sentence,
            "text": f"{self.run}: {message.sentence}",
            "time": round(now, 3),
        }


def deliver(message: AlertMessage, sender: Sender, environ: Mapping[str, str], now: float) -> None:
    """Send one message. Raises DeliveryError."""
    fields = sender.fields(message, now)
    try:
        if message.rule.to == "webhook":
            _post(_address(message.rule, environ), _body(message.rule, fields))
        elif message.rule.to == "mail":
            _mail(message.rule.address, fields)
        else:
            _run(list(message.rule.command), json.dumps(fields).encode(), dict(environ))
    except subprocess.TimeoutExpired:
        raise DeliveryError(f"it did not end within {TIMEOUT_SECONDS:g} s") from None


def _body(rule: AlertRule, fields: Mapping[str, Any]) -> bytes:
    # Slack and Mattermost accept the same form: {"text": …}.
    return json.dumps(fields if rule.form == "json" else {"text": fields["text"]}).encode()


def _address(rule: AlertRule, environ: Mapping[str, str]) -> str:
    """Return the address of a webhook. Raises DeliveryError, which only names the source of the address."""
    if rule.url_from:
        address = environ.get(rule.url_from, "")
        where = f"the variable {rule.url_from}"
    else:
        where = f"the file {rule.url_file}"
        try:
            with Path(rule.url_file).open("rb") as file:
                address = file.read(_MAX_ADDRESS + 1).decode().strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DeliveryError(f"{where} cannot be read: {reason}") from None
    address = address.strip()
    if not address:
        raise DeliveryError(f"{where} is empty or not set: name its secret in the learner's pod.secrets")
    # Only HTTP: urllib would also open file://. No characters that could end the request line.
    is_web = address.lower().startswith(("https://", "http://"))
    if not is_web or len(address) > _MAX_ADDRESS or not address.isascii() or not address.isprintable():
        raise DeliveryError(f"{where} holds no address that begins with https:// or http://")
    return address


def _opener() -> OpenerDirector:
    from urllib import request  # here, as it would cost a learner without alerts 30 ms

    opener = request.OpenerDirector()
    # Not build_opener(): it adds handlers for files and FTP, and one that follows redirects.
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _post(address: str, body: bytes) -> None:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    headers = {"Content-Type": "application/json", "User-Agent": "l2r-runtime"}
    try:
        request = Request(address, body, headers, method="POST")  # noqa: S310  (_address allows HTTP alone)
        with _opener().open(request, timeout=TIMEOUT_SECONDS):
            return
    except HTTPError as error:
        error.close()
        moved = ", and redirects are not followed" if 300 <= error.code < 400 else ""
        raise DeliveryError(f"it answered {error.code}{moved}") from None
    except URLError as error:
        raise DeliveryError(f"it cannot be reached: {_reason(error.reason)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(f"it cannot be reached: {_reason(error)}") from None


def _reason(error: object) -> str:
    """Return a reason without the address, which texts of these libraries' errors may contain."""
    text = getattr(error, "strerror", None)
    return text if isinstance(text, str) and "://" not in text else type(error).__name__


def _mail(address: str, fields: Mapping[str, Any]) -> None:
    from email.message import EmailMessage

    program = next((path for path in _SENDMAIL if os.access(path, os.X_OK)), None)
    if program is None:
        raise DeliveryError("sendmail is not installed here")
    mail = EmailMessage()
    # A line end in a header would start another header; EmailMessage refuses it.
    mail["To"], mail["Subject"] = address, f"[l2r] {' '.join(str(fields['text']).split())[:200]}"
    mail.set_content("\n".join(f"{name}: {value}" for name, value in fields.items()) + "\n")
    _run([program, "-i", "-t"], mail.as_bytes(), dict(os.environ))


def _run(argv: list[str], text: bytes, environ: dict[str, str]) -> None:
    """Run a command with a text on its standard input; it ends within the timeout, and its children with it."""
    try:
        process = subprocess.Popen(  # argv of the spec, without a shell
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise DeliveryError(f"it cannot be started: {_reason(error)}") from None
    try:
        process.communicate(text, timeout=TIMEOUT_SECONDS)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise DeliveryError(f"it ended with code {process.returncode}")


class AlertSender:
    """Sends messages from its own thread, in order, with a few attempts each.

    Args:
        say: Called with a sentence for each message that could not be delivered; from any thread.
    """

    def __init__(self, sender: Sender, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._sender, self._environ, self._say = sender, dict(environ), say
        self._queue: queue.Queue[tuple[AlertMessage, float] | None] = queue.Queue(MAX_QUEUED)
        self._is_closing = threading.Event()
        # A daemon: a thread that hangs in a name server must not delay the end of the process.
        self._thread = threading.Thread(target=self._send_all, name="alerts", daemon=True)
        self._thread.start()

    def send(self, message: AlertMessage) -> None:
        """Queue a message without waiting; if the queue is full, drop it with a sentence."""
        try:
            self._queue.put_nowait((message, time.time()))
        except queue.Full:
            self._say(f"alert dropped, {MAX_QUEUED} wait before it: {message.state} to {message.rule.target}")

    def close(self, patience_seconds: float) -> None:
        """Let the thread send queued messages for at most this long."""
        self._is_closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(patience_seconds)
        if self._thread.is_alive():
            self._say(f"alerts that were not delivered within {patience_seconds:g} s are lost")

    def _send_all(self) -> None:
        while (item := self._queue.get()) is not None:
            self._send(*item)

    def _send(self, message: AlertMessage, since: float) -> None:
        for attempt in range(ATTEMPTS):
            try:
                deliver(message, self._sender, self._environ, since)
            except DeliveryError as error:
                if attempt < len(_RETRY_SECONDS):
                    # At the end of the process there is no time for pauses between attempts.
                    self._is_closing.wait(_RETRY_SECONDS[attempt])
                    continue
                self._say(f"alert not delivered to {message.rule.target}: {error}")
            except Exception as error:  # noqa: BLE001  (the thread goes on, or all later messages would be lost)
                self._say(f"alert not delivered to {message.rule.target}: {type(error).__name__}")
            else:
                self._say(f"alert sent to {message.rule.target}: {message.sentence}")
            return
