"""The command line: the app by default, and headless verbs over the same services.

A package, since its verbs would outgrow one file: ``parser`` says which words there are, ``main`` runs them and
turns errors into exit codes, ``output`` writes, ``documents`` and ``views`` say what each object looks like, and
``verbs`` holds what each verb does. Data goes to stdout, talk to stderr. Nothing heavy is imported before a verb
needs it, so that ``--help`` and ``--version`` answer at once.
"""
