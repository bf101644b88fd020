"""Modal screens: lists, forms, questions, progress. Each answers with a typed value."""
