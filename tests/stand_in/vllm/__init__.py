"""A stand-in for vLLM; see the README two folders up."""
