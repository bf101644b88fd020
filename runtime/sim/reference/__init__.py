"""A reference simulator: the whole wire protocol of the lab's simulator over this project's own cars and tracks.

``maps`` are its courses, ``car`` and ``world`` what moves on them, ``render`` what cameras see, ``rpc`` the control
methods as plain calls, ``server`` the sockets and the clock, ``faults`` what can be made to go wrong.
"""
