"""What runs in containers: learner, workers, evaluator, and the exchange between them. It knows nothing of l2rtui.

Beside the three loops and the files that they share, each thing that can be looked at alone is a file of its own,
so that it is tested without sockets or processes. The exchange, from the wire up: ``endpoint`` and ``channels``;
``framing`` and ``messages``; ``membership``, the learner's machine, with its ``events`` and ``accounts``;
``session``, the peer's machine; ``exchange`` and ``peer``, which join machines and sockets on either side. What
travels: ``rollout`` fills ``segments``, ``replay`` takes them in, ``policy_store`` gives weights out, at the rate
of ``pacing``. What lasts: ``files``, ``counters``, ``packing`` and ``checkpoints``. What a process is:
``process``, ``settings``, ``stopping``.
"""
