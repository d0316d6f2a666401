"""What stands behind a replica's stable name: a process of ours (managed) or somebody else's server (attached)."""
