"""Actions that change runs: place, launch, kill, scale, relaunch, destroy.

Each key asks first, and nothing happens before the answer. Targets are the marked rows, otherwise the selected run,
pod or cell of the matrix, or the name given after ``:``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from l2rtui.config import user_name
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.services.ownership import is_mine
from l2rtui.services.terminal import Words
from l2rtui.ui.dialogs.questions import Questions, is_acting_for, may_touch, pod_targets
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.state.placement_draft import LaunchOptions
from l2rtui.ui.text import QUEUED

if TYPE_CHECKING:
    from l2rtui.ui.placing.screen import PlaceScreen

ALL_MINE: Final = "mine"
"""Argument of ``:kill``, ``:destroy`` and ``:relaunch`` for all runs of the user."""


class RunActions:
    """Actions on one object, a row, a cell, a column, or all of the user's runs."""

    def __init__(self, view: HomeView) -> None:
        self._view = view
        self._questions = Questions(view.screen, view.ctx, lambda: view.snapshot)

    def action_launch(self, path: str = "") -> None:
        """Open the launch form."""
        self._open_form(LaunchOptions(path))

    def _open_form(self, options: LaunchOptions, *, is_planning: bool = False) -> None:
        from l2rtui.ui.dialogs.launch import LaunchScreen

        form = LaunchScreen(self._view.ctx, options, is_planning=is_planning, place=self._place_from_form)
        self._view.screen.app.push_screen(form, self._launched)

    def launch_example(self) -> None:
        """Open the launch form with the plan of the first example over it."""
        self._open_form(LaunchOptions(""), is_planning=True)

    def action_place(self, path: str = "") -> None:
        """Open place mode."""
        screen = self._place_screen(LaunchOptions(path), self._open_form)
        self._view.screen.app.push_screen(screen, self._launched)

    def _place_from_form(
        self, options: LaunchOptions, placed: Callable[[tuple[str, ...] | None, LaunchOptions], None]
    ) -> None:
        """Open place mode over the launch form, which gets its result and its options."""
        screen = self._place_screen(options, None)
        self._view.screen.app.push_screen(screen, lambda launched: placed(launched, screen.options))

    def _place_screen(self, options: LaunchOptions, to_form: Callable[[LaunchOptions], None] | None) -> PlaceScreen:
        from l2rtui.ui.placing.screen import PlaceScreen

        grid = self._view.panes.slots
        return PlaceScreen(self._view.ctx, self._view.snapshot, options, lambda: grid.figures, to_form)

    def _launched(self, names: tuple[str, ...] | None) -> None:
        if names:
            self._view.say(f"launched {', '.join(names)}")
            if started := [name for name in names if not name.endswith(QUEUED)]:
                self._view.content.select_when_seen(started)

    def menu_object(self) -> tuple[str, str]:
        """Return the kind of the selected object, see ``dialogs.menu.ACTIONS``, and its name."""
        view = self._view
        run, pod, cell = view.selected_run, view.selected_pod, view.selection.cell
        if view.panes.last_list is Pane.NODES:
            node = view.panes.nodes.cursor_key
            return ("node", node) if node else ("", "")
        if pod is not None:
            return "worker" if pod.role is Role.WORKER else "pod", pod.name
        if run is None:
            return "", ""
        if cell:
            return "set" if self._cell_of([run]) else "learners", f"{run.name}/{cell}"
        return "run", run.name

    def action_kill(self, target: str = "") -> None:
        """Kill the named pods, the marked ones, those of the selected cell or run, or the selected one."""
        self._view.content.show_pods()  # the table may be hidden, and its cursor on a pod of the run before
        if target:
            pods, name = self._pods_named(target), target if target != ALL_MINE else ""
        elif pods := self._marked_pods():
            name = ""
        else:
            pods, name = self._selected_pods(), self._target()
            if not pods and self._view.selection.pane is Pane.RUNS:
                pods = self._pods_named(name)
        if pods:
            self._questions.ask_kill(pods, name if len(pods) > 1 else "")
        elif target:
            self._view.say(f"There is no run, set or pod {target!r}.", is_error=True)
        else:
            self._view.say("Select a pod to kill: 3 goes to the pods, space marks several.")

    def action_destroy(self, target: str = "") -> None:
        """Destroy the named runs, the marked ones, or the selected one; if cells are selected, stop their
        replicas.
        """
        runs = self._runs_named(target) if target else self._marked_or_selected_runs()
        cell = "" if target else self._cell_of(runs)
        if not runs:
            missing = f"There is no run or experiment {target!r}." if target else ""
            self._view.say(missing or "Select a run to destroy: 2 goes to the runs, space marks several.")
        elif cell:
            # Some of the marked runs may lack the set: only runs that have it are scaled.
            self._questions.ask_scale([run for run in runs if run.set_named(cell)], cell, 0)
        else:
            self._questions.ask_destroy(runs, self._view.snapshot)

    def action_relaunch(self, target: str = "") -> None:
        """Launch runs again, also one that is gone."""
        from l2rtui.ui.dialogs import relaunch

        view = self._view
        runs = self._runs_named(target) if target else self._marked_or_selected_runs()
        if not runs and target:
            relaunch.review_destroyed(view.screen, view.ctx, target, self._launched)
        elif not runs:
            self.action_gone()
        else:
            relaunch.ask_relaunch(view.screen, view.ctx, runs, view.snapshot)

    def action_gone(self) -> None:
        """List the runs destroyed from this machine; the chosen one is launched again."""
        from l2rtui.ui.dialogs import relaunch

        view = self._view
        relaunch.choose_destroyed(view.screen, view.ctx, view.snapshot, self._launched)

    def action_scale(self, by: int) -> None:
        """Ask for one replica more or less in the selected set."""
        self._view.content.show_pods()
        run, set_name = self._view.selected_run, self._view.selection.set_name(self._view.snapshot)
        if run is None or not set_name:
            self._view.say("Select a cell of the matrix, or a pod of the set to scale.")
        elif (replicas := _replicas(run, set_name) + by) < 0:
            self._view.say(f"{run.name}/{set_name} has no replica that could be stopped.")
        else:
            self._questions.ask_scale([run], set_name, replicas)

    def action_edit(self) -> None:
        """Open the spec of the run in $EDITOR; a question shows the difference."""
        view, run = self._view, self._view.selected_run
        if run is None:
            view.say("Select a run to edit: 2 goes to the runs.")
        elif may_touch(view.ctx, "edit", [run]):
            from l2rtui.ui.dialogs import edit

            work = edit.edit(view.screen, view.ctx, run, lambda: view.snapshot)
            view.ctx.background.start(work, group="edit", what=f"editing {run.name}")

    def action_cancel(self) -> None:
        """Cancel the newest confirmed kill or destroy that has not started: key ``u``, see
        ``ui.state.undo_window``.
        """
        what = self._view.ctx.undo_window.undo_newest()
        self._view.say(f"cancelled: {what}" if what else "There is nothing to undo.")

    def _target(self) -> str:
        return self._view.selection.target(self._view.snapshot)

    def _runs_named(self, target: str) -> list[RunView]:
        if target == ALL_MINE:
            me = user_name()
            return [run for run in self._view.snapshot.runs.values() if is_mine(run, me)]
        return list(self._view.snapshot.runs_matching(target))

    def _pods_named(self, target: str) -> tuple[PodView, ...]:
        snapshot = self._view.snapshot
        if target != ALL_MINE:
            return snapshot.select(target)
        return tuple(pod for run in self._runs_named(target) for pod in snapshot.pods_of(run.name))

    def _marked_runs(self) -> list[RunView]:
        return [run for uid, run in self._view.snapshot.runs.items() if uid in self._view.panes.runs.marked]

    def _marked_or_selected_runs(self) -> list[RunView]:
        run = self._view.selected_run
        return self._marked_runs() or ([run] if run is not None else [])

    def _cell_of(self, runs: list[RunView]) -> str:
        """Return the set of workers of the selected cell, if one of these runs has it."""
        cell = self._view.selection.cell
        sets = [workers for run in runs if (workers := run.set_named(cell))]
        return cell if any(workers.role is not Role.LEARNER for workers in sets) else ""

    def _selected_pods(self) -> tuple[PodView, ...]:
        return self._view.selection.pods(self._view.snapshot)

    def _marked_pods(self) -> tuple[PodView, ...]:
        """Return the marked pods; with marked runs and a selected cell, the pods of that set in each run."""
        snapshot, panes = self._view.snapshot, self._view.panes
        marked = tuple(pod for uid, pod in snapshot.pods.items() if uid in panes.pods.marked)
        cell = panes.runs.cursor_set
        if marked or not cell:
            return marked
        return tuple(pod for run in self._marked_runs() for pod in snapshot.pods_of(run.name, cell))

    def cli_equivalent(self, action: str) -> str:
        """Return the command line that does the same as an action on the selection; empty if there is no such
        command.
        """
        view = self._view
        commands = self._equivalent(action)
        row = view.selected_pod or view.selected_run
        return view.ctx.command_line(*commands, row=row) if commands else ""

    def _equivalent(self, action: str) -> Sequence[Words]:
        view, run, pod, target = self._view, self._view.selected_run, self._view.selected_pod, self._target()
        name, _, argument = action.partition("(")
        if name == "scale" and run is not None and (set_name := view.selection.set_name(view.snapshot)):
            replicas = max(0, _replicas(run, set_name) + int(argument.rstrip(")")))
            return [cli_equivalents.scale(f"{run.name}/{set_name}", replicas, is_admin=is_acting_for([run]))]
        if name == "kill" and target and (pod is not None or view.selection.cell):
            pods = self._selected_pods()
            targets = pod_targets(view.ctx, view.snapshot, pods, target) if pods else []
            return [cli_equivalents.kill(targets, is_admin=is_acting_for(pods))] if targets else []
        if name == "destroy" and run is not None:
            return [cli_equivalents.destroy([run.name], is_admin=is_acting_for([run]))]
        if name == "relaunch" and run is not None:
            from l2rtui.ui.dialogs import relaunch

            return relaunch.commands_for(view.ctx, [run], view.snapshot)
        if name == "logs" and target:
            targets = pod_targets(view.ctx, view.snapshot, [pod]) if pod is not None else [target]
            return [cli_equivalents.logs(targets)] if targets else []
        if pod is None or not (targets := pod_targets(view.ctx, view.snapshot, [pod])):
            return []
        (own,) = targets
        if name == "simulators":
            return [cli_equivalents.simulator("status", own)]
        of_pod = {"shell": cli_equivalents.shell, "attach": cli_equivalents.attach}
        return [of_pod[name](own)] if name in of_pod else []


def _replicas(run: RunView, set_name: str) -> int:
    workers = run.set_named(set_name)
    return workers.replicas if workers is not None else 0
