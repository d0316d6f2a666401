"""The control socket: what CLI and dashboard say, what they hear, and the event stream (spec 12)."""
