"""The local backend: this machine is the node, its processes are the pods.

Two programs meet on disk (``paths``, ``records``, ``state_files``): the app, and one supervisor for each run in
``supervision``, which must stay small and import little. ``backend`` joins the other modules and holds no logic of
its own: ``run_store`` and ``views`` read; ``launch``, ``destroy``, ``exec`` and ``preflight`` act; ``process_scan``
and ``run_folders`` find what belongs to this backend; ``environment`` makes what a process gets; ``logs`` reads
output.
"""
