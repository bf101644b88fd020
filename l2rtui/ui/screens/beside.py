"""Keys that reach into one pod: its shell, output, signals, ports and simulators; and what lies around pods."""

from __future__ import annotations

import signal
from contextlib import aclosing
from typing import Final

from textual.app import SuspendNotSupported
from textual.worker import Worker

from l2rtui.backends.base import Capturing, Inspector
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError, UsageError
from l2rtui.services import journal
from l2rtui.ui import twins
from l2rtui.ui.feeds import Subject
from l2rtui.ui.link import Link
from l2rtui.ui.screens.asking import ask, is_acting_for, may_touch, owned_by, typed
from l2rtui.ui.screens.confirm import Question
from l2rtui.ui.screens.purpose import Purpose
from l2rtui.ui.screens.reading import Reading
from l2rtui.ui.text import Span, Tone

SHELL: Final = ("sh",)


class Beside(Reading):
    """What is done beside a pod's process."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._forwards: dict[str, Worker[None]] = {}

    def _pod(self, purpose: str) -> PodView | None:
        """The selected pod, or None after saying that one must be selected."""
        self.show_pods()
        pod = self.selection.pod(self.snapshot)
        if pod is None:
            self.link.background.say(f"Select the pod {purpose}: 3 goes to the pods.")
        return pod

    def action_shell(self) -> None:
        """Lend the terminal to a shell beside the pod's process."""
        pod = self._pod("in which to open a shell")
        if pod is not None:
            self.link.background.start(self._shell(pod), group="shell", what=f"the shell in {pod.name}")

    async def _shell(self, pod: PodView) -> None:
        backend = self.link.backend
        try:
            # Nothing is painted while the terminal is lent; the watch goes on.
            with self.app.batch_update(), self.app.suspend(), self.link.lent():
                code = await backend.exec(pod, SHELL)
        except SuspendNotSupported:
            self.link.background.say(f"This terminal cannot be lent. Use `{twins.shell(pod.name)}`.")
            return
        self.link.background.say(f"the shell in {pod.name} ended with {code}")

    # --- attach ------------------------------------------------------------------------------------------------
    def action_attach(self) -> None:
        """Only this pod's output, on the whole screen, from now on; esc goes back."""
        pod = self._pod("to attach to")
        if pod is None:
            return
        desk = self.deck.split()
        if desk is None:
            self.link.background.say("Four panes are open; x in a pane closes it.")
            return
        desk.feed.show(Subject(f"pod {pod.uid}", f"{pod.name} from now on", pod.run, (pod,), since_seconds=0.0))
        self.attach(desk)
        self.call_after_refresh(self.set_focus, desk.pane)

    # --- signals -----------------------------------------------------------------------------------------------
    def action_signal(self, name: str = "") -> None:
        """Ask for a signal, or with its name whether it is to be sent."""
        pod = self._pod("that gets a signal")
        if pod is None or not may_touch(self.link, "signal", [pod]):
            return
        if not name:
            self.ask(Purpose.SIGNAL)
            return
        try:
            known = _signal_named(name)
        except UsageError as error:
            self.link.background.say(str(error), is_error=True)
            return
        self._ask_signal(pod, known)

    def _ask_signal(self, pod: PodView, name: str) -> None:
        pid = pod.pid or 1  # in a container its process is the first
        question = Question(
            f"Send {name} to {sanitize(pod.name)}?",
            ((Span("Its process gets it; what follows is the program's affair.", Tone.DIM),), *owned_by([pod])),
            yes="Send",
            typed=typed(self.link, pod.name if is_acting_for([pod]) else ""),
            is_grave=True,
            command=twins.signal(pod.name, name, pid),
        )

        async def send() -> None:
            backend = self.link.backend
            if not isinstance(backend, Capturing):
                raise BackendError(f"The {backend.name} backend can send no signals.")
            told = await backend.capture(pod, twins.signal_command(name, pid))
            if told.code:
                reason = told.err.decode("utf-8", "replace").strip() or f"exit {told.code}"
                raise BackendError(f"{name} was not sent to {pod.name}: {reason[:200]}.")
            journal.record("signal", pod.name, "sent", signal=name)
            self.link.background.say(f"{name} was sent to {pod.name}.")

        def begin() -> None:
            self.link.background.start(send(), group="signal", what=f"the signal to {pod.name}")

        ask(self, self.link, question, f"sending {name} to {pod.name}", begin)

    # --- ports -------------------------------------------------------------------------------------------------
    def action_forward(self, ports: str = "") -> None:
        """Ask for ports and carry them to the pod; a second time, end that."""
        pod = self._pod("to which a port leads")
        if pod is None:
            return
        running = self._forwards.pop(pod.uid, None)
        if running is not None and not running.is_finished:
            running.cancel()
            self.link.background.say(f"No port leads to {pod.name} any more.")
        elif not ports:
            self.ask(Purpose.FORWARD)
        else:
            work = self._forward(pod, ports)
            self._forwards[pod.uid] = self.link.background.start(
                work, group="forward", what=f"the port to {pod.name}"
            )

    async def _forward(self, pod: PodView, ports: str) -> None:
        local, remote = ports_of(ports)
        backend: object = self.link.backend
        if not isinstance(backend, Inspector):
            self.link.background.say("Its pods listen on this machine: connect to them directly.")
            return
        async with aclosing(backend.forward(pod, local, remote)) as news:
            async for sentence in news:
                self.link.background.say(sentence)

    # --- simulators and the spec -------------------------------------------------------------------------------
    def action_simulators(self) -> None:
        """The simulators of the selected worker."""
        pod = self._pod("whose simulators are meant")
        if pod is not None:
            from l2rtui.ui.screens.simulators import SimulatorsScreen

            self.app.push_screen(SimulatorsScreen(self.link, pod))

    def action_volumes(self) -> None:
        """The volumes and the files in them."""
        from l2rtui.ui.screens.volumes import VolumesScreen

        self.app.push_screen(VolumesScreen(self.link))

    def action_images(self) -> None:
        """The images that were built here."""
        from l2rtui.ui.screens.images import ImagesScreen

        self.app.push_screen(ImagesScreen(self.link))

    def action_artifacts(self, place: str = "") -> None:
        """The checkpoints of a place or run; without one, those of the selected run."""
        from l2rtui.ui.screens.artifacts import ArtifactsScreen

        run = self.selection.run(self.snapshot)
        self.app.push_screen(ArtifactsScreen(self.link, place or (run.name if run is not None else "")))

    def action_edit(self) -> None:
        """The spec of the run in $EDITOR; what it changes is shown and asked."""
        run = self.selection.run(self.snapshot)
        if run is None:
            self.link.background.say("Select a run to edit: 2 goes to the seeds.")
        elif may_touch(self.link, "edit", [run]):
            from l2rtui.ui.screens import edit

            self.link.background.start(
                edit.edit(self, self.link, run, lambda: self.snapshot), group="edit", what=f"editing {run.name}"
            )


def ports_of(text: str) -> tuple[int, int]:
    """Read ``LOCAL:REMOTE``, or one number for both.

    Raises:
        UsageError: it is something else.
    """
    local, _, remote = text.strip().rpartition(":")
    numbers = [local or remote, remote]
    if not all(one.isascii() and one.isdigit() and int(one) < 65_536 for one in numbers) or int(remote) == 0:
        raise UsageError(f"{text!r} is not LOCAL:REMOTE.", "Such as 6006:6006; 0:6006 lets the system choose.")
    return int(numbers[0]), int(numbers[1])


def _signal_named(text: str) -> str:
    """The name of a signal without SIG, from its name or number.

    Raises:
        UsageError: there is none.
    """
    word = text.strip().upper().removeprefix("SIG")
    try:
        number = signal.Signals(int(word)) if word.isdigit() else signal.Signals[f"SIG{word}"]
    except (ValueError, KeyError):
        raise UsageError(f"There is no signal {text!r}.", "Such as USR1, TERM, INT or 10.") from None
    return number.name.removeprefix("SIG")
