"""l2rtui: reinforcement learning on shared GPU machines, from one terminal.

Contains only the version: importing any submodule runs this file.
"""

__version__ = "0.1.0"
