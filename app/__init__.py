"""The control plane: studies, leases and answers behind a REST API and a command line."""
