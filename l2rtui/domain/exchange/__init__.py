"""The exchange between a learner and its peers, as displayed; the learner's progress is ``domain.metrics``."""
