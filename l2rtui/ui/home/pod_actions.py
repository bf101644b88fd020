"""Actions on one pod: its shell, output, signals, ports and simulators."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final

from textual.app import SuspendNotSupported
from textual.worker import Worker

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, RefusedError, UsageError
from l2rtui.services.history import journal
from l2rtui.services.port_forwards import carry
from l2rtui.services.terminal import carry as carry_terminal
from l2rtui.services.terminal import leave_text
from l2rtui.ui.dialogs.confirm import Question
from l2rtui.ui.dialogs.questions import ask, is_acting_for, may_touch, owned_by, pod_targets, where_line
from l2rtui.ui.home.command_line import CommandLine, PromptMode
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.log_stream import LogSelection
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.text import Span, TextStyle

if TYPE_CHECKING:
    from l2rtui.backends.base import AttachedProcess

SHELL: Final = ("sh",)


class PodActions:
    """Actions on the selected pod."""

    def __init__(self, view: HomeView, command_line: CommandLine) -> None:
        self._view = view
        self._ctx = view.ctx
        self._command_line = command_line
        self._forwards: dict[str, Worker[None]] = {}

    def _target(self, pod: PodView) -> str:
        return next(iter(pod_targets(self._ctx, self._view.snapshot, [pod])), pod.name)

    def _pod(self, purpose: str) -> PodView | None:
        """Return the selected pod, or None after saying that one must be selected."""
        self._view.content.show_pods()  # the table may be hidden, and its cursor on a pod of the previous run
        pod = self._view.selected_pod
        if pod is None:
            self._view.say(f"Select the pod {purpose}: 3 goes to the pods.")
        return pod

    def action_shell(self) -> None:
        """Open a shell in the selected pod: key ``s``. The shell uses the terminal until it ends."""
        pod = self._pod("in which to open a shell")
        if pod is not None:
            self._ctx.background.start(self._shell(pod), group="shell", what=f"the shell in {pod.name}")

    async def _shell(self, pod: PodView) -> None:
        app = self._view.screen.app
        try:
            # Nothing is painted while another program uses the terminal; the watch continues.
            with app.batch_update(), app.suspend(), self._ctx.lent():
                code = await self._ctx.backend.exec(pod, SHELL)
        except SuspendNotSupported:
            command = self._ctx.command_line(cli_equivalents.shell(self._target(pod)), row=pod)
            self._view.say(f"This terminal cannot be lent. Use `{command}`.")
            return
        self._view.say(f"the shell in {pod.name} ended with {code}")

    def action_attach(self) -> None:
        """Connect the terminal to the pod's process: key ``a``. For a process without input, show only its
        output.
        """
        pod = self._pod("to attach to")
        if pod is None:
            return
        if self._ctx.forbidden("shell"):  # typing counts as a change
            self._show_output(pod)
        else:
            self._ctx.background.start(self._attach(pod), group="shell", what=f"the input of {pod.name}")

    async def _attach(self, pod: PodView) -> None:
        async with AsyncExitStack() as stack:
            try:
                process = await stack.enter_async_context(self._ctx.backend.attach(pod))
            except RefusedError as error:
                self._view.say(f"{error.message} This is its output; esc goes back.")
                self._show_output(pod)
                return
            await self._carry(pod, process)

    async def _carry(self, pod: PodView, process: AttachedProcess) -> None:
        app = self._view.screen.app
        try:
            with app.batch_update(), app.suspend(), self._ctx.lent():
                print(f"{sanitize(pod.name)}: {leave_text(has_terminal=process.has_terminal)}", flush=True)
                is_left = await carry_terminal(process)
        except SuspendNotSupported:
            command = self._ctx.command_line(cli_equivalents.attach(self._target(pod)), row=pod)
            self._view.say(f"This terminal cannot be lent. Use `{command}`.")
            return
        self._view.say(f"{pod.name} runs on" if is_left else f"the output of {pod.name} has ended")

    def _show_output(self, pod: PodView) -> None:
        """Show only this pod's output on the whole screen, from now on; esc goes back."""
        log = self._view.navigation.split_log()
        if log is not None:
            title = f"{pod.name} live output"
            log.stream.show(LogSelection(f"pod {pod.uid}", title, pod.run, (pod,), since_seconds=0.0))
            self._view.navigation.attach(log)

    def action_signal(self, name: str = "") -> None:
        """Ask for a signal; with a name, ask for confirmation before it is sent."""
        pod = self._pod("that gets a signal")
        if pod is None or not may_touch(self._ctx, "signal", [pod]):
            return
        if not name:
            self._command_line.ask(PromptMode.SIGNAL)
            return
        try:
            signal_name = _signal_named(name)
        except UsageError as error:
            self._view.say(str(error), is_error=True)
            return
        self._ask_signal(pod, signal_name)

    def _ask_signal(self, pod: PodView, name: str) -> None:
        pid = pod.pid or 1  # in a container the program is process 1
        sentence = "Its process gets it; how it reacts is up to the program."
        question = Question(
            f"Send {name} to {sanitize(pod.name)}?",
            (where_line(self._ctx, [pod]), (Span(sentence, TextStyle.DIM),), *owned_by([pod])),
            yes="Send",
            typed=self._ctx.protected_for([pod]) or (pod.name if is_acting_for([pod]) else ""),
            is_grave=True,
            command=self._ctx.command_line(cli_equivalents.signal(self._target(pod), name, pid), row=pod),
        )

        async def send() -> None:
            output = await self._ctx.backend.capture(pod, cli_equivalents.signal_command(name, pid))
            if output.code:  # kill(1) in the pod: no such process, or one of another user
                reason = output.err.decode("utf-8", "replace").strip() or f"exit {output.code}"
                raise BackendError(f"{name} was not sent to {pod.name}: {reason[:200]}.")
            journal.record("signal", pod.name, "sent", signal=name)
            self._view.say(f"{name} was sent to {pod.name}.")

        def begin() -> None:
            self._ctx.background.start(send(), group="signal", what=f"the signal to {pod.name}")

        ask(self._view.screen, self._ctx, question, f"sending {name} to {pod.name}", begin)

    def action_forward(self, ports: str = "") -> None:
        """Ask for ports and forward them to the pod; if ports are forwarded already, stop that."""
        pod = self._pod("to which a port leads")
        if pod is None:
            return
        # Finished ones too: a failed forward leaves its worker here, and the key then starts another.
        running = self._forwards.pop(pod.uid, None)
        if running is not None and not running.is_finished:
            running.cancel()
            self._view.say(f"No port leads to {pod.name} any more.")
        elif not ports:
            self._command_line.ask(PromptMode.FORWARD)
        else:
            work, what = self._forward(pod, ports), f"the port to {pod.name}"
            self._forwards[pod.uid] = self._ctx.background.start(work, group="forward", what=what)

    @property
    def open_forwards(self) -> int:
        """Number of ports that are forwarded to pods now."""
        return sum(not worker.is_finished for worker in self._forwards.values())

    async def _forward(self, pod: PodView, ports: str) -> None:
        local, remote = ports_of(ports)
        inspector = self._ctx.backend.inspector
        if inspector is None:
            self._view.say("Its pods listen on this machine: connect to them directly.")
            return
        async with aclosing(carry(inspector, self._ctx.backend.name, pod, local, remote)) as sentences:
            async for sentence in sentences:
                self._view.say(sentence)

    def action_simulators(self) -> None:
        """Open the simulators of the selected worker."""
        pod = self._pod("whose simulators are meant")
        if pod is not None:
            from l2rtui.ui.dialogs.simulators import SimulatorsScreen

            self._view.screen.app.push_screen(SimulatorsScreen(self._ctx, pod, self._target(pod)))


def ports_of(text: str) -> tuple[int, int]:
    """Read ``LOCAL:REMOTE``, or one number for both.

    Raises:
        UsageError: the text has another form.
    """
    local, _, remote = text.strip().rpartition(":")
    numbers = [local or remote, remote]
    # isascii: isdigit also accepts digits of other scripts, and superscripts that int() refuses.
    if not all(part.isascii() and part.isdigit() and int(part) < 65_536 for part in numbers) or int(remote) == 0:
        raise UsageError(f"{text!r} is not LOCAL:REMOTE.", "Such as 6006:6006; 0:6006 lets the system choose.")
    return int(numbers[0]), int(numbers[1])


def _signal_named(text: str) -> str:
    """Return the name of a signal without SIG, from its name or number.

    Raises:
        UsageError: there is no such signal.
    """
    name = text.strip().upper().removeprefix("SIG")
    try:
        number = signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name}"]
    except (ValueError, KeyError):
        raise UsageError(f"There is no signal {text!r}.", "Such as USR1, TERM, INT or 10.") from None
    return number.name.removeprefix("SIG")
