"""The table of keys, what is made from it (bindings, help, docs), and their order of delivery."""
