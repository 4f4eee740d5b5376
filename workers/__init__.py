"""The worker: claims trials, runs vLLM under load beside one GPU group, reports what it saw."""
