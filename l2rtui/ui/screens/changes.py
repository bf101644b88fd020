"""The changing half of the home screen: each key asks first, and nothing happens before the answer."""

from __future__ import annotations

from typing import Final

from l2rtui.config import user_name
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.workload import Role
from l2rtui.services.owners import is_mine
from l2rtui.ui import twins
from l2rtui.ui.screens.asking import is_acting_for
from l2rtui.ui.screens.panes import ClusterView

ALL_MINE: Final = "mine"
"""Written after ``:kill``, ``:destroy`` and ``:relaunch`` for every run that is mine."""


class Changes(ClusterView):
    """Place, launch, kill, scale, relaunch, destroy: one object, a row, a cell, a column, all of mine."""

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
        named = self._pods_named(target) if target else ()
        marked = () if target else self._marked_pods()
        pods = named or marked or (() if target else self.selection.pods(self.snapshot))
        name = target if target != ALL_MINE else ""
        if not target and not marked:
            name = self.selection.target(self.snapshot)
        if pods:
            asks.ask_kill(self, self.link, pods, name if len(pods) > 1 else "")
        elif target:
            self.link.background.say(f"There is no run, set or pod {target!r}.", is_error=True)
        else:
            self.link.background.say("Select a pod to kill: 3 goes to the pods, space marks several.")

    def action_destroy(self, target: str = "") -> None:
        """Destroy the named runs, the marked ones, or the selected one; of selected cells, stop their replicas."""
        from l2rtui.ui.screens import asks

        runs = self._runs_named(target) if target else self._chosen_runs()
        cell = "" if target else self._cell_of(runs)
        if not runs:
            absent = f"There is no run or experiment {target!r}." if target else ""
            self.link.background.say(absent or "Select a run to destroy: 2 goes to the seeds, space marks several.")
        elif cell:
            asks.ask_scale(self, self.link, [run for run in runs if _set_of(run, cell)], cell, 0)
        else:
            asks.ask_destroy(self, self.link, runs, self.snapshot)

    def action_relaunch(self, target: str = "") -> None:
        """Launch runs again, also one that is gone; of selected cells, kill the pods, which come back."""
        from l2rtui.ui.screens import again, asks

        runs = self._runs_named(target) if target else self._chosen_runs()
        if not runs:
            again.review_destroyed(self, self.link, target, self._launched)
        elif not target and self.runs.cursor_set and (pods := self._marked_pods() or self._selected_pods()):
            name = "" if self.runs.marked else self.selection.target(self.snapshot)
            asks.ask_kill(self, self.link, pods, name)
        else:
            again.ask_relaunch(self, self.link, runs, self.snapshot)

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

            asks.ask_scale(self, self.link, [run], set_name, now + by)

    def action_cancel(self) -> None:
        """Call back what was confirmed a moment ago."""
        what = self.link.pending.call_back()
        self.link.background.say(f"called back: {what}" if what else "There is nothing to call back.")

    def action_admin(self) -> None:
        """Act for other people, or no more; each change to what is theirs wants its name typed."""
        self.link.is_admin = not self.link.is_admin
        self.post_health()
        now = "Other people's runs may be changed now: each wants its name typed." if self.link.is_admin else ""
        self.link.background.say(now or "Other people's runs are left alone again.")

    # --- what is meant -----------------------------------------------------------------------------------------
    def _runs_named(self, target: str) -> list[RunView]:
        if target == ALL_MINE:
            me = user_name()
            return [run for run in self.snapshot.runs.values() if is_mine(run, me)]
        return list(self.snapshot.runs_matching(target))

    def _pods_named(self, target: str) -> tuple[PodView, ...]:
        if target != ALL_MINE:
            return self.snapshot.select(target)
        return tuple(pod for run in self._runs_named(target) for pod in self.snapshot.pods_of(run.name))

    def _chosen_runs(self) -> list[RunView]:
        """The marked runs, else the selected one."""
        marked = [run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked]
        run = self.selection.run(self.snapshot)
        return marked or ([run] if run is not None else [])

    def _cell_of(self, runs: list[RunView]) -> str:
        """The set of workers whose cell is selected, where one of these runs has it."""
        cell = self.selection.cell
        sets = [one for run in runs if (one := _set_of(run, cell))]
        return cell if any(one.role is not Role.LEARNER for one in sets) else ""

    def _selected_pods(self) -> tuple[PodView, ...]:
        return self.selection.pods(self.snapshot)

    def _marked_pods(self) -> tuple[PodView, ...]:
        """The marked pods; with marked runs and a chosen set, the pods of that set in each of them."""
        marked = tuple(pod for uid, pod in self.snapshot.pods.items() if uid in self.pods.marked)
        cell = self.runs.cursor_set
        if marked or not cell:
            return marked
        runs = (run for uid, run in self.snapshot.runs.items() if uid in self.runs.marked)
        return tuple(pod for run in runs for pod in self.snapshot.pods_of(run.name, cell))

    def twin(self, action: str) -> str:
        """The command line that does what an action does, for the selection; empty where there is none."""
        run, pod = self.selection.run(self.snapshot), self.selection.pod(self.snapshot)
        target = self.selection.target(self.snapshot)
        name, _, argument = action.partition("(")
        if name == "scale" and run is not None and (set_name := self.selection.set_name(self.snapshot)):
            now = next((one.replicas for one in run.sets if one.name == set_name), 0)
            to = max(0, now + int(argument.rstrip(")")))
            return twins.scale(f"{run.name}/{set_name}", to, is_admin=is_acting_for([run]))
        if name == "kill" and target and (pod is not None or self.selection.cell):
            return twins.kill([target], is_admin=is_acting_for(self.selection.pods(self.snapshot)))
        if name in ("destroy", "relaunch") and run is not None:
            twin = twins.destroy([run.name], is_admin=is_acting_for([run]))
            return twin if name == "destroy" else twins.relaunch([run.name], is_admin=is_acting_for([run]))
        if name == "logs" and target:
            return twins.logs([target])
        of_pod = {"shell": twins.shell, "attach": twins.attach, "simulators": _status}
        return of_pod[name](pod.name) if name in of_pod and pod is not None else ""


def _set_of(run: RunView, name: str) -> SetView | None:
    return next((one for one in run.sets if one.name == name), None)


def _status(target: str) -> str:
    return twins.simulator("status", target)
