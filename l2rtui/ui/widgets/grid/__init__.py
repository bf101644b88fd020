"""Slot grid as values: positions at each zoom level, text of its lines, legend. Pure.

The widget that draws it is ``ui.widgets.gpu_grid``; placement moves over the same cells.
"""
