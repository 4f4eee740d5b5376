"""What the control plane does by itself: taking back lost leases, finishing what stopped half-way."""
