"""One declaration of a column, rendered by the CLI and by the app."""

import io

import pytest

from l2rtui.cli.output import Output
from l2rtui.domain.owners import Holding
from l2rtui.tables.history import RUNS
from l2rtui.tables.summaries import EXPERIMENTS, OWNERS, OwnerRow, trials
from l2rtui.ui.text import NOTHING, TextStyle
from l2rtui.ui.widgets.table_model import columns_of, row_of

HOLDING = Holding("ann", "racing", pods=7, runs=2, slots=7, cpu_slots=0, gpus=2, unknown_gpus=0)


def cli_table(row: OwnerRow) -> list[list[str]]:
    out = io.StringIO()
    Output("table", out).show_all(OWNERS, [row])
    return [line.split() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    "view", [OWNERS, EXPERIMENTS, RUNS, trials(())], ids=["owners", "experiments", "runs", "trials"]
)
def test_names_of_columns_are_unique_in_both_tables(view) -> None:
    headers, keys = [column.header for column in view.of_cli], [column.key for column in columns_of(view)]
    assert len(set(headers)) == len(headers)
    assert len(set(keys)) == len(keys)
    assert "" not in headers


def test_both_tables_write_the_values_of_one_getter() -> None:
    row = OwnerRow(HOLDING, 12.25)
    cells = {
        column.key: cell for column, cell in zip(columns_of(OWNERS), row_of(OWNERS, "k", row).cells, strict=True)
    }
    header, values = cli_table(row)
    assert "12.25" in values
    assert cells["hours"].text == "12.25"
    assert [cells[key].text for key in ("owner", "project", "runs", "pods", "gpus")] == values[:5]
    assert header[:5] == ["OWNER", "PROJECT", "RUNS", "PODS", "GPUS"]


def test_an_unknown_number_is_dim_and_sorts_below_all_others_and_zero_of_a_count_is_dim() -> None:
    row = row_of(OWNERS, "k", OwnerRow(HOLDING, None))
    place = [column.key for column in columns_of(OWNERS)].index
    assert row.cells[place("hours")].text == NOTHING
    assert row.cells[place("hours")].style is TextStyle.DIM
    assert row.sort[place("hours")] < -1e300
    assert row.cells[place("cpu_slots")].style is TextStyle.DIM
    assert row.cells[place("gpus")].style is TextStyle.PLAIN
