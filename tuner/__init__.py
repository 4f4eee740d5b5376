"""The search core: pure functions from a space and a history to the next configuration to measure."""
