"""The changing half of the home screen: each key asks first, and nothing happens before the answer."""

from __future__ import annotations

from typing import Final

from textual.app import SuspendNotSupported

from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.ui import twins
from l2rtui.ui.screens.panes import ClusterView

SHELL: Final = ("sh",)


class Changes(ClusterView):
    """Place, launch, kill, scale, relaunch, destroy, shell."""

    def action_launch(self, path: str = "") -> None:
        """The launch form."""
        from l2rtui.ui.screens.launch import LaunchScreen

        self.app.push_screen(LaunchScreen(self.link, path), self._launched)

    def action_place(self, path: str = "") -> None:
        """Place mode."""
        from l2rtui.ui.screens.place import PlaceScreen

        self.app.push_screen(PlaceScreen(self.link, self.snapshot, path), self._launched)

    def _launched(self, names: tuple[str, ...] | None) -> None:
        if names:
            self.link.background.say(f"launched {', '.join(names)}")

    def action_kill(self, target: str = "") -> None:
        """Kill the named pods, the marked ones, those of the selected cell, or the selected one."""
        from l2rtui.ui.screens import asks

        self.show_pods()
        named = self.snapshot.select(target) if target else ()
        marked = () if target else self._marked_pods()
        pods = named or marked or (() if target else self.selection.pods(self.snapshot))
        name = target or ("" if marked else self.selection.target(self.snapshot))
        if pods:
            asks.ask_kill(self, self.link, pods, name if len(pods) > 1 else "")
        elif target:
            self.link.background.say(f"There is no run, set or pod {target!r}.", is_error=True)
        else:
            self.link.background.say("Select a pod to kill: 3 goes to the pods, space marks several.")

    def _marked_pods(self) -> tuple[PodView, ...]:
        """The marked pods; with marked runs and a chosen set, the pods of that set in each of them."""
        marked = tuple(pod for uid, pod in self.snapshot.pods.items() if uid in self.pods.marked)
        cell = self.runs.cursor_set
        if marked or not cell:
            return marked
        runs = (run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked)
        return tuple(pod for run in runs for pod in self.snapshot.pods_of(run.name, cell))

    def action_destroy(self, target: str = "") -> None:
        """Destroy the named runs, the marked ones, or the selected one; of a selected cell, stop its replicas."""
        from l2rtui.ui.screens import asks

        marked = [run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked]
        run, cell = self.selection.run(self.snapshot), self.selection.cell
        one = next((one for one in run.sets if one.name == cell), None) if run is not None else None
        named = list(self.snapshot.runs_matching(target)) if target else []
        runs: list[RunView] = named if target else marked or ([run] if run else [])
        if not runs:
            absent = f"There is no run or experiment {target!r}." if target else ""
            self.link.background.say(absent or "Select a run to destroy: 2 goes to the seeds, space marks several.")
        elif not target and not marked and run is not None and one is not None and one.role is not Role.LEARNER:
            asks.ask_scale(self, self.link, run, cell, 0)
        else:
            asks.ask_destroy(self, self.link, runs, self.snapshot)

    def action_relaunch(self) -> None:
        """Launch the selected run again, or kill the pods of the selected cell, which come back."""
        from l2rtui.ui.screens import asks

        run = self.selection.run(self.snapshot)
        if self.selection.cell and (pods := self.selection.pods(self.snapshot)):
            asks.ask_kill(self, self.link, pods, self.selection.target(self.snapshot))
        elif run is not None:
            asks.ask_relaunch(self, self.link, run, self.snapshot)
        else:
            self.link.background.say("Select a run to relaunch: 2 goes to the seeds.")

    def action_scale(self, by: int) -> None:
        """One replica more or less in the selected set."""
        self.show_pods()
        run, set_name = self.selection.run(self.snapshot), self.selection.set_name(self.snapshot)
        now = next((one.replicas for one in run.sets if one.name == set_name), 0) if run else 0
        if run is None or not set_name:
            self.link.background.say("Select a cell of the matrix, or a pod of the set to scale.")
        elif now + by < 0:
            self.link.background.say(f"{run.name}/{set_name} has no replica that could be stopped.")
        else:
            from l2rtui.ui.screens import asks

            asks.ask_scale(self, self.link, run, set_name, now + by)

    def action_cancel(self) -> None:
        """Call back what was confirmed a moment ago."""
        what = self.link.pending.call_back()
        self.link.background.say(f"called back: {what}" if what else "There is nothing to call back.")

    def action_shell(self) -> None:
        """Lend the terminal to a shell beside the pod's process."""
        self.show_pods()
        pod = self.selection.pod(self.snapshot)
        if pod is None:
            self.link.background.say("Select the pod in which to open a shell: 3 goes to the pods.")
        else:
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

    def twin(self, action: str) -> str:
        """The command line that does what an action does, for the selection; empty where there is none."""
        run, pod = self.selection.run(self.snapshot), self.selection.pod(self.snapshot)
        target = self.selection.target(self.snapshot)
        name, _, argument = action.partition("(")
        if name == "scale" and run is not None and (set_name := self.selection.set_name(self.snapshot)):
            now = next((one.replicas for one in run.sets if one.name == set_name), 0)
            return twins.scale(f"{run.name}/{set_name}", max(0, now + int(argument.rstrip(")"))))
        if name == "kill" and target and (pod is not None or self.selection.cell):
            return twins.kill([target])
        if name == "destroy" and run is not None:
            return twins.destroy([run.name])
        if name == "logs" and target:
            return twins.logs([target])
        return twins.shell(pod.name) if name == "shell" and pod is not None else ""
