"""The local backend: this machine is the node, its processes are the pods.

Two programs communicate through files (``paths``, ``records``, ``state_files``): the app, and one supervisor for
each run in ``supervision``, which must stay small and import little. ``backend`` joins the other modules and has no
logic of its own: ``run_store`` and ``views`` read; ``launch``, ``destroy``, ``exec`` and ``preflight`` act;
``process_scan`` and ``run_folders`` find the processes and folders of this backend; ``environment`` builds a
process's variables and command; ``logs`` reads output.
"""
