"""What people touch: the command line and the dashboard. Both are clients of the control socket."""
