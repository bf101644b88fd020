"""Remote inference: observations to the learner, outputs of its policy network back."""
