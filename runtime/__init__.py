"""Programs inside the containers of a run: learner, workers, evaluator, simulators, jobs. Knows nothing of l2rtui.

Rooms: ``base`` (ground floor of both packages), ``exchange`` (learner/worker exchange, no algorithm), ``rl``
(algorithms, buffers, environments, roles), ``sim`` (simulators), ``tracks``, ``jobs``. docs/architecture.md follows
an environment step through them to a gradient.
"""
