"""l2rtui: reinforcement learning on shared GPU machines, from one terminal.

Only the version stands here: importing any submodule runs this file.
"""

__version__ = "0.1.0"
