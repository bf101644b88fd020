"""Lists above the runs: experiments, owners, runs of the past; enter opens what is behind a row.

They compute from what the app has anyway; only the history reads its file. What a row opens is done by ``ui.home``.
"""
