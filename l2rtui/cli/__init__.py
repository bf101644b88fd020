"""Command line: the app by default, and headless verbs over the same services.

``parser`` defines verbs and options, ``main`` runs them and turns errors into exit codes, ``output`` writes,
``verbs`` has one module for each verb or group. ``l2rtui.tables`` has the columns and documents of objects. Data
goes to stdout, messages to stderr. Heavy modules are imported only when a verb needs them, so that ``--help`` and
``--version`` answer quickly.
"""
