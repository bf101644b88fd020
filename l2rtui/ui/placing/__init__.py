"""Place mode: a draft of a placement on the slot grid.

Its pure values are in ``ui.state.placement_draft``, the grid in ``ui.widgets.gpu_grid``.
"""
