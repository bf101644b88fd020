"""Details of the selection in a few lines: status, slots, learning progress."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.domain.ledger import Slot, SlotState
from l2rtui.domain.metrics import ExchangeFigures, PodMetrics, RunMetrics
from l2rtui.domain.node import GpuShare, GpuUse, Node
from l2rtui.domain.quantity import age, counted, format_bytes, format_rate
from l2rtui.domain.runstatus import LEARNS, LOADING, LearningState, run_status
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Level, Status
from l2rtui.domain.workload import Role
from l2rtui.tables.resources import simulator_level
from l2rtui.ui.state.learning_states import NOT_READ
from l2rtui.ui.text import (
    GLYPHS,
    NOTHING,
    Line,
    Span,
    TextStyle,
    clip,
    count,
    decimal,
    per_second,
    percent,
    sparkline,
    status_text,
    style_of_level,
    width_of,
    wrapped,
)
from l2rtui.ui.widgets.pod_table import slot_text
from l2rtui.ui.widgets.run_table import is_learning
from l2rtui.ui.widgets.span_renderer import SpanWidget

_LABEL = 10
_MOST_OF_STATE = 3
"""Lines for the state of the selection if all lines are in use; half of the strip at most."""


class MetricStrip(SpanWidget):
    """Lines about the selection. The first one is its status, so that a height of one line is useful."""

    lines: reactive[tuple[Line, ...]] = reactive((), repaint=False)

    _rows: tuple[Line, ...] = ()

    def watch_lines(self) -> None:
        """Draw the rows that differ."""
        old, self._rows = self._rows, self._fitted()
        self.refresh_changed(old, self._rows)

    def on_resize(self) -> None:
        """Wrap the lines for the new size."""
        self._rows = self._fitted()
        self.refresh()

    def _fitted(self) -> tuple[Line, ...]:
        """Return the lines; long ones are wrapped as far as there are rows."""
        width, spare = self.size.width, self.size.height - len(self.lines)
        rows: list[Line] = []
        for line in self.lines:
            indent = _LABEL + 3 if rows else 3  # the first is a sentence, the others have a label
            # The fault and its cause matter more than some figures; a strip of a single line has no second row.
            most = 1 + max(spare, 0, 0 if rows else min(_MOST_OF_STATE, self.size.height // 2) - 1)
            broken = wrapped(line, width, most, indent) if width_of(line) > width > 0 else (line,)
            spare -= len(broken) - 1
            rows += broken
        return tuple(rows)

    def render_line(self, y: int) -> Strip:
        """One row; text that does not fit is cut between words, so that no number is cut."""
        line = self._rows[y] if y < len(self._rows) else ()
        return self.strip(clip(line, self.size.width), self.size.width)


def about_run(
    run: RunView,
    pods: Sequence[PodView],
    metrics: RunMetrics | None,
    now: float,
    width: int,
    old: str = "",
    learning: LearningState | None = None,
    *,
    is_single: bool = False,
) -> tuple[Line, ...]:
    """Describe a run: status, the state of its learning with cause and next step, sets, learning progress.

    Args:
        old: Age of the metrics if they are old; otherwise empty.
        is_single: Only the first line is shown.
    """
    status = run_status(run, pods)
    if learning is not None and learning.is_fault and status.level is Level.OK:
        # A run whose pods run and that does not learn is not fine. A pane of one line has no line of the learning.
        reason = f": {learning.reason}" if is_single else ""
        status = Status(learning.state, learning.level, f"{status.sentence}, {learning.state}{reason}")
    sets = "  ".join(
        f"{view.name} {sum(pod.ready for pod in pods if pod.set_name == view.name)}/{view.replicas}"
        for view in run.sets
    )
    lines: list[Line] = [
        _heading(run.name, status),
        *_about_learning(learning, now, width),
        _field("sets", sanitize(sets) or NOTHING),
        _field("owner", f"{sanitize(run.owner) or NOTHING}   seed {run.seed}   age {age(now - run.created)}"),
    ]
    if metrics is None:
        return tuple(lines)
    # The sparkline gets the width that label and number leave, at least enough to see a trend.
    bars = max(8, min(40, width - _LABEL - 13))
    lag = f"lag {decimal(metrics.policy_lag)} (most {count(metrics.policy_lag_max)})"
    # A learner that hangs or was deleted has no rate.
    is_live = is_learning(pods) and not old
    rate, updates = metrics.env_steps_per_second, metrics.updates_per_second
    lines += [
        *_about_silence(old, is_live=is_learning(pods)),
        _series("return", metrics.returns, decimal(metrics.reported_return), bars),
        _series("steps/s", metrics.rates, count(round(rate)) if is_live else NOTHING, bars),
        _field(
            "policy", f"v{metrics.policy_version:,}   {lag}   {per_second(updates if is_live else None)} updates/s"
        ),
        _field("progress", _progress(metrics)),
        *_about_device(metrics, old),
    ]
    if is_live and metrics.exchange.is_recorded:
        lines += _about_exchange(metrics.exchange)
    return tuple(lines)


def _about_exchange(figures: ExchangeFigures) -> tuple[Line, ...]:
    """Lines about the traffic of a learner's exchange, each short enough for a narrow pane."""
    came, went = (format_rate(number) for number in (figures.bytes_in, figures.bytes_out))
    return (
        _field("exchange", f"in {came}   out {went}"),
        _field("", f"{count(figures.inflight)} in flight   {count(figures.stale)} dropped as stale"),
    )


def _about_learning(learning: LearningState | None, now: float, width: int) -> tuple[Line, ...]:
    """Lines of the state of the learning: word, time, and its sentence, wrapped, as the end names the next step."""
    if learning is None:
        return ()
    since = f" for {age(now - learning.since)}" if learning.is_fault and learning.since else ""
    reason = "" if learning.reason in (LEARNS, LOADING) else sanitize(learning.reason)
    colon = ": " if reason else ""
    word = Span(f"{status_text(learning.word, learning.level)}{since}", style_of_level(learning.level))
    text = f"{'_' * len(word.text)}{colon}{reason}"
    # A truncated sentence ends with an ellipsis.
    rows = textwrap.wrap(text, max(20, width - _LABEL - 4), max_lines=3, placeholder=" …") or [""]
    rest = [_field("", row) for row in rows[1:]]
    return ((*_field("learning", "")[:1], word, Span(rows[0].lstrip("_"))), *rest)


def _about_silence(old: str, *, is_live: bool) -> tuple[Line, ...]:
    """Line with the age of the numbers below it; empty if they are new."""
    if not old:
        return ()
    reason = f"▲ {old} old: the learner no longer prints records" if is_live else f"{old} old: the last one"
    return (
        (
            Span(f"   {'record':<{_LABEL}}", TextStyle.DIM),
            Span(reason, TextStyle.WARN if is_live else TextStyle.DIM),
        ),
    )


def about_pod(
    pod: PodView,
    now: float,
    record: PodMetrics | None = None,
    metrics: RunMetrics | None = None,
    old: str = "",
    mismatches: Sequence[str] = (),
    shares: Mapping[int, GpuShare | None] = MappingProxyType({}),
) -> tuple[Line, ...]:
    """Describe a pod: status, node and slot, history, and its newest metric record, for a learner the run's.

    Args:
        old: Age of that record if it is outdated; otherwise empty.
        mismatches: Sentences about differences between the pod and its place.
        shares: Its part of each GPU that it uses; None if unknown.
    """
    created = age(now - pod.created) if pod.created else NOTHING
    return (
        _heading(pod.name, _with_simulator(pod, record)),
        *((*_field("mismatch", "")[:1], Span(f"▲ {sanitize(text)}", TextStyle.WARN)) for text in mismatches),
        _field("place", f"{sanitize(pod.node) or NOTHING}   slot {slot_text(pod)}"),
        _field("run", f"{sanitize(pod.run) or NOTHING}   set {sanitize(pod.set_name) or NOTHING}"),
        _field("process", _process(pod)),
        _field("owner", f"{sanitize(pod.owner) or NOTHING}   age {created}"),
        *(_field("its share", _share_text(gpu, share)) for gpu, share in sorted(shares.items())),
        *(_about_record(record, old, is_up=not pod.is_down) if record is not None else ()),
        *(_about_device(metrics, old) if metrics is not None and pod.role is Role.LEARNER else ()),
    )


def _with_simulator(pod: PodView, record: PodMetrics | None) -> Status:
    """Return the status of a pod; if only its simulator has a fault, the simulator's status."""
    status, state = pod.status, record.simulator if record is not None and not pod.is_down else ""
    level = simulator_level(state) if state else Level.OK
    if status.level is not Level.OK or level not in (Level.WARN, Level.BAD):
        return status
    return Status(status.word, level, f"{status.sentence}; its simulator is {state}")


def _process(pod: PodView) -> str:
    """Facts about the process of a pod; unknown values are left out."""
    pid = f"pid {pod.pid}   " if pod.pid else ""
    ended = "" if pod.exit_code is None else f"   last exit {pod.exit_code}"
    return f"{pid}restarts {pod.restarts}{ended}"


def _share_text(gpu: int, share: GpuShare | None) -> str:
    figures = _figures(share.percent, share.memory_bytes) if share is not None else ""
    return f"of GPU{gpu}{figures or '   unknown: its processes cannot be told apart from those of others'}"


def _about_record(record: PodMetrics, old: str, *, is_up: bool) -> tuple[Line, ...]:
    """Lines of a pod's newest record; for a pod that is down, only the values that still hold."""
    lines: list[Line] = []
    if old == NOT_READ and is_up:
        lines.append((*_field("record", ""), Span("its log is not read now: select its run", TextStyle.DIM)))
    elif old and is_up:
        lines.append((*_field("record", ""), Span(f"▲ {old} old: it no longer prints records", TextStyle.WARN)))
    if record.simulator and is_up:
        level = simulator_level(record.simulator)
        fps = "" if old else f"   {count(round(record.simulator_fps))} fps"
        facts = f"   restarts {record.simulator_restarts}{fps}"
        state = Span(status_text(sanitize(record.simulator), level), style_of_level(level))
        lines.append((*_field("simulator", ""), state, Span(facts)))
        if record.simulator_error:
            lines.append(_field("", sanitize(record.simulator_error)))
    if record.rank is not None:
        met = "" if record.round is None else f"   round {record.round}"
        of = NOTHING if record.world_size is None else record.world_size
        lines.append(_field("rank", f"{record.rank} of {of}{met}"))
    if record.step:
        lines.append(_field("step", sanitize(record.step)))
    if record.rate is not None and is_up and not old:
        lines.append(_field("steps/s", count(round(record.rate))))
    if is_up and (record.gpu_percent is not None or record.gpu_memory_bytes is not None):
        lines.append(_field("its GPU", _figures(record.gpu_percent, record.gpu_memory_bytes).strip()))
    return tuple(lines)


def _about_device(metrics: RunMetrics, old: str) -> tuple[Line, ...]:
    """Line about the device that a learner computes on; empty if the runtime does not report it."""
    since = f"   {old} ago" if old else ""
    if not metrics.device:
        return ()
    own = metrics.gpu_reserved_bytes
    reserved = f"   {format_bytes(own)} by PyTorch" if own is not None else ""
    figures = _figures(metrics.gpu_percent, metrics.gpu_memory_bytes)
    return (_field("learns on", f"{sanitize(metrics.device)}{figures}{reserved}{since}"),)


def about_slot(
    slot: Slot,
    node: Node | None,
    pod: PodView | None,
    now: float,
    record: PodMetrics | None = None,
    metrics: RunMetrics | None = None,
    old: str = "",
    mismatches: Sequence[str] = (),
    shares: Mapping[int, GpuShare | None] = MappingProxyType({}),
    unseen: str = "",
) -> tuple[Line, ...]:
    """Describe a slot: its holder and its device.

    Args:
        unseen: Clause about pods of its node whose GPU is unknown.
    """
    states = {
        SlotState.FREE: (" · ", TextStyle.DIM, "is free"),
        SlotState.RESERVED: (" = ", TextStyle.WAIT, f"is {sanitize(slot.use)}"),
        SlotState.UNKNOWN: (
            " ? ",
            TextStyle.WARN,
            f"may be in use: {sanitize(unseen) or 'not all pods of its node can be listed'}",
        ),
        SlotState.OFF: (" ─ ", TextStyle.DIM, "is unusable: its node takes no pods"),
        SlotState.BUSY: (" ● ", TextStyle.OK, sanitize(slot.pod)),
        SlotState.FAILED: (" ✖ ", TextStyle.FAULT, sanitize(slot.pod)),
    }
    glyph, style, sentence = states[slot.state]
    if pod is not None:
        status = _with_simulator(pod, record)
        sentence = f"{sentence}, {sanitize(status.sentence)}"
        if slot.state is SlotState.BUSY and status.level is not Level.OK:
            glyph, style = f" {GLYPHS[status.level]} ", style_of_level(status.level)
    lines: list[Line] = [(Span(glyph, style), Span(f"{sanitize(str(slot.id))} ", TextStyle.STRONG), Span(sentence))]
    gpu = node.gpu(slot.id.gpu) if node else None
    if gpu is not None:
        use = node.use(gpu.index) if node else None
        # Not every backend knows the memory of a device; then the size from the measurement is shown.
        total = gpu.memory_bytes or (use.memory_bytes if use else 0)
        memory = f"   {format_bytes(total)}" if total else ""
        name = sanitize(gpu.model) or ("CPU" if gpu.is_cpu else NOTHING)
        lines.append(_field("device", f"{gpu.label}   {name}{memory}   {counted(gpu.slots, 'slot')}{_in_use(use)}"))
    if slot.reservation is not None and slot.state is not SlotState.RESERVED:
        lines.append(_field("reserved", sanitize(slot.reservation.text.removeprefix("reserved "))))
    if pod is None:
        return tuple(lines)
    about = about_pod(pod, now, record, metrics, old, mismatches, shares)[1:]
    # The first line already names the place, unless the pod has more than this slot.
    is_alone = len(pod.devices) == 1 and pod.devices[0].count == 1
    return (*lines, *(line for line in about if not is_alone or not line[0].text.startswith("   place ")))


def _in_use(use: GpuUse | None) -> str:
    """Utilisation, memory, power and temperature of a GPU as a text; empty without a measurement."""
    if use is None:
        return ""
    watts = f"   {use.watts:.0f} W" if use.watts is not None else ""
    celsius = f"   {use.celsius:.0f} °C" if use.celsius is not None else ""
    busy = f"   {percent(use.percent, 100)} busy" if use.percent is not None else ""
    return busy + _memory_in_use(use.memory_used_bytes) + watts + celsius


def _memory_in_use(used_bytes: float | None) -> str:
    return f"   {format_bytes(used_bytes)} in use" if used_bytes is not None else ""


def _figures(busy: float | None, used_bytes: float | None) -> str:
    """Utilisation and memory of a GPU in a record; unknown values are left out."""
    return (f"   {busy:.0f}% busy" if busy is not None else "") + _memory_in_use(used_bytes)


def _heading(name: str, status: Status) -> Line:
    glyph = Span(" "), Span(GLYPHS[status.level], style_of_level(status.level)), Span(" ")
    return *glyph, Span(f"{sanitize(name)} ", TextStyle.STRONG), Span(sanitize(status.sentence))


def _field(label: str, text: str) -> Line:
    return (Span(f"   {label:<{_LABEL}}", TextStyle.DIM), Span(text))


def _series(label: str, values: Sequence[float], newest: str, bars: int) -> Line:
    number = Span(f"{newest:>8}  ", TextStyle.STRONG)
    return _field(label, "")[0], number, Span(sparkline(values, bars), TextStyle.ACCENT)


def _progress(metrics: RunMetrics) -> str:
    # 0 for an environment without a track, such as a pole: then progress is not shown.
    progress = f"eval {decimal(metrics.eval_progress)}   " if metrics.eval_progress else ""
    return f"{progress}{count(metrics.env_steps)} env steps"
