"""Tables: the columns and documents of each kind of objects, declared once for the CLI and the app.

A column has one typed getter. ``cli.output`` and ``ui.widgets.table_model`` render it, each with its own widths and
styles.
"""
