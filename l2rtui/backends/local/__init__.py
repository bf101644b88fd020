"""The embedded backend: this machine is the node, its processes are the pods.

``backend`` joins the others and holds no logic of its own. Two programs meet on disk (``layout``, ``records``,
``files``): the app (``store`` and ``views`` read; ``launch``, ``destroy``, ``control``, ``checks`` act) and one
``supervisor`` for each run (``pod``, ``child``, ``policy``, ``logfile``), which must stay small and import little;
that is why they are many files. ``processes`` and ``folders`` find what is ours, ``machine``, ``capacity`` and
``gpus`` what is there, ``environment`` makes what a process is given, ``logs`` reads what it said.
"""
