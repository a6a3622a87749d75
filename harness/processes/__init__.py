"""Launching, membership, heartbeat and restarts of the instances."""
