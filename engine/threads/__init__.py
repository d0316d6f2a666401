"""Intra-op threads of a CPU engine: the team that every forward runs on, learning, exactness (spec 9)."""
