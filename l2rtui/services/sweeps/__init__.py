"""Results of the trials of current and past sweeps.

Trials and their choice are in ``domain.sweeps``, their form in a spec file in ``services.spec.sweep_fields``.
"""
