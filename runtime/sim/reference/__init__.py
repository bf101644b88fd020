"""Reference simulator: the complete wire protocol of the lab's simulator over this project's cars and tracks.

``maps`` has the courses, ``car`` and ``world`` the motion on them, ``render`` the images, ``rpc`` the control
methods as plain calls, ``server`` the sockets and the clock, ``faults`` the fault injection.
"""
